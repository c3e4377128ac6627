//! An exact least-recently-used list over dense page numbers: the yardstick that other simulators share, so that
//! miss counts can be compared to the last one.

/// No page.
const NIL: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Links {
    newer: u32,
    older: u32,
}

/// The list.
#[derive(Debug)]
pub struct ExactLru {
    links: Vec<Links>,
    newest: u32,
    oldest: u32,
    resident: u32,
    capacity: u32,
}

impl ExactLru {
    /// Over pages 0..`pages`, holding `capacity` of them, at least one.
    pub fn new(pages: u32, capacity: u32) -> Self {
        let absent = Links { newer: NIL, older: NIL };
        Self { links: vec![absent; pages as usize], newest: NIL, oldest: NIL, resident: 0, capacity: capacity.max(1) }
    }

    /// Uses a page; true if it was there.
    #[inline]
    pub fn touch(&mut self, page: u32) -> bool {
        if page == self.newest {
            return true;
        }
        let links = self.links[page as usize];
        // Every resident page but the newest has a newer one.
        let hit = links.newer != NIL;
        if hit {
            self.links[links.newer as usize].older = links.older;
            if links.older == NIL {
                self.oldest = links.newer;
            } else {
                self.links[links.older as usize].newer = links.newer;
            }
        } else if self.resident == self.capacity {
            self.evict();
        } else {
            self.resident += 1;
        }
        self.links[page as usize] = Links { newer: NIL, older: self.newest };
        if self.newest == NIL {
            self.oldest = page;
        } else {
            self.links[self.newest as usize].newer = page;
        }
        self.newest = page;
        hit
    }

    fn evict(&mut self) {
        let victim = self.oldest;
        let newer = self.links[victim as usize].newer;
        self.links[victim as usize] = Links { newer: NIL, older: NIL };
        self.oldest = newer;
        if newer == NIL {
            self.newest = NIL;
        } else {
            self.links[newer as usize].older = NIL;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::XorShift64;

    #[test]
    fn it_agrees_with_a_list_moved_by_hand() {
        for capacity in [1usize, 2, 7, 40] {
            let mut lru = ExactLru::new(50, u32::try_from(capacity).expect("small"));
            let mut naive: Vec<u32> = Vec::new();
            let mut rng = XorShift64::new(9);
            for _ in 0..5000 {
                let page = rng.below(50);
                let at = naive.iter().position(|p| *p == page);
                if let Some(at) = at {
                    naive.remove(at);
                }
                naive.insert(0, page);
                naive.truncate(capacity);
                assert_eq!(lru.touch(page), at.is_some());
            }
        }
    }
}
