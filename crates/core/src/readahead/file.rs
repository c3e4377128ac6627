//! Page-cache readahead: windows of one open file.
//!
//! ```text
//!   start                                start + size
//!   |------------------|M|------------------|          M = start + size - async: its touch starts the next window
//! ```
//!
//! A miss that follows the read before (or starts a file, or is larger than the limit) begins a window; a miss with enough
//! cached pages before it is a stream found in the middle; any other is read alone. The windows of a stream double.
//! Mapped files are read around the fault, unless faults have missed too often. Arithmetic only: which pages are read is
//! decided in `file`.

/// Log2 of the alignment that a window of a file without large folios gets.
const ORDER_SMALL: u32 = 2;
/// Misses of mapped accesses are counted up to here; beyond a tenth of it there is no readahead.
const MMAP_MISS_MAX: u32 = 1000;
const MMAP_MISS_LOTS: u32 = 100;

/// What a file and its device admit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RaLimits {
    /// `read_ahead_kb / 4`.
    pub(crate) ra_pages: u32,
    /// Largest request the device likes, in pages; a larger limit for larger requests.
    pub(crate) io_pages: u32,
    /// Windows are aligned more and more as a stream grows (files with large folios).
    pub(crate) large: bool,
    /// 6.17 and later: windows are aligned. Before 6.12: an oversized request has no marker half way.
    pub(crate) aligned: bool,
}

/// A window: pages `start..start + size`, of which the touch of `marker` starts the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileWindow {
    pub(crate) start: u32,
    pub(crate) size: u32,
    pub(crate) marker: Option<u32>,
}

/// Readahead state of an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileRa {
    start: u32,
    size: u32,
    async_size: u32,
    /// The page in which the byte after the last read lies; `None`: nothing was read yet.
    previous: Option<u32>,
    mmap_miss: u32,
    order: u32,
}

/// First window of a stream that asks for `size` pages at a time.
fn first_window(size: u32, max: u32) -> u32 {
    let s = size.next_power_of_two();
    if s <= max / 32 {
        s * 4
    } else if s <= max / 4 {
        s * 2
    } else {
        max
    }
}

fn next_window(size: u32, max: u32) -> u32 {
    if size < max / 16 {
        size * 4
    } else if size <= max / 2 {
        size * 2
    } else {
        max
    }
}

impl FileRa {
    pub(crate) const fn new() -> Self {
        Self { start: 0, size: 0, async_size: 0, previous: None, mmap_miss: 0, order: 0 }
    }

    fn max(limits: RaLimits, request: u32) -> u32 {
        if request > limits.ra_pages { limits.ra_pages.max(request.min(limits.io_pages)) } else { limits.ra_pages }
    }

    const fn window(&self) -> FileWindow {
        let marker = if self.async_size > 0 { Some(self.start + self.size - self.async_size) } else { None };
        FileWindow { start: self.start, size: self.size, marker }
    }

    /// `read` needs page `i`, which is not there, and asks for `request` pages. `cached_before` counts the cached pages
    /// directly before `i`, up to its argument, and tells whether they reach the start of the file.
    pub(crate) fn sync(
        &mut self,
        limits: RaLimits,
        i: u32,
        request: u32,
        cached_before: impl FnOnce(u32) -> u32,
    ) -> FileWindow {
        if limits.ra_pages == 0 {
            return FileWindow { start: i, size: 1, marker: None };
        }
        let max = Self::max(limits, request);
        let follows = self.previous.is_some_and(|previous| i.wrapping_sub(previous) <= 1);
        if i == 0 || request > max || follows {
            self.start = i;
            self.size = first_window(request, max);
            self.async_size = if self.size > request {
                self.size - request
            } else if limits.aligned {
                self.size / 2
            } else {
                self.size
            };
            self.order = 0;
            return self.window();
        }
        let mut before = cached_before(max);
        if before <= request {
            return FileWindow { start: i, size: request, marker: None };
        }
        if before >= i {
            before *= 2;
        }
        self.start = i;
        self.size = (before + request).min(max);
        self.async_size = 1;
        self.order = 0;
        self.window()
    }

    /// The marker at page `i` was touched. `next_hole` gives the first page after `i` that is not cached, within its
    /// argument.
    pub(crate) fn advance(
        &mut self,
        limits: RaLimits,
        i: u32,
        request: u32,
        next_hole: impl FnOnce(u32) -> Option<u32>,
    ) -> Option<FileWindow> {
        let max = Self::max(limits, request);
        if i == self.start + self.size - self.async_size {
            self.start += self.size;
            let next = next_window(self.size, max);
            self.size = if limits.aligned { next.max(self.size) } else { next };
        } else {
            let hole = next_hole(max)?;
            self.start = hole;
            self.size = next_window(hole - i + request, max);
        }
        if limits.aligned {
            self.order = if limits.large { self.order + 2 } else { ORDER_SMALL };
            let align = 1 << self.order.min(limits.ra_pages.trailing_zeros());
            let end = (self.start + self.size) / align * align;
            if end > self.start {
                self.size = end - self.start;
            }
        }
        self.async_size = self.size;
        Some(self.window())
    }

    /// A mapped access missed page `i`: read around it. `None`: too many have missed.
    pub(crate) fn mmap_miss(&mut self, limits: RaLimits, i: u32, sequential: bool, random: bool) -> Option<FileWindow> {
        if limits.ra_pages == 0 || random {
            return None;
        }
        if sequential {
            return Some(self.sync(limits, i, limits.ra_pages, |_| 0));
        }
        self.mmap_miss = (self.mmap_miss + 1).min(MMAP_MISS_MAX);
        if self.mmap_miss > MMAP_MISS_LOTS {
            return None;
        }
        self.start = i.saturating_sub(limits.ra_pages / 2);
        self.size = limits.ra_pages;
        self.async_size = limits.ra_pages / 4;
        self.order = 0;
        Some(self.window())
    }

    /// Mapped accesses found so many pages.
    pub(crate) const fn mmap_hits(&mut self, pages: u32) {
        self.mmap_miss = self.mmap_miss.saturating_sub(pages);
    }

    /// A read ended: the next byte lies in page `end`.
    pub(crate) const fn read_to(&mut self, end: u32) {
        self.previous = Some(end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;
    use alloc::vec::Vec;

    const SMALL: RaLimits = RaLimits { ra_pages: 32, io_pages: 0, large: false, aligned: true };
    const LARGE: RaLimits = RaLimits { large: true, ..SMALL };

    struct File {
        ra: FileRa,
        limits: RaLimits,
        cached: BTreeSet<u32>,
        markers: BTreeSet<u32>,
        windows: Vec<(u32, u32, u32)>,
    }

    impl File {
        fn new(limits: RaLimits) -> Self {
            let (cached, markers) = (BTreeSet::new(), BTreeSet::new());
            Self { ra: FileRa::new(), limits, cached, markers, windows: Vec::new() }
        }

        fn submit(&mut self, window: FileWindow) {
            let end = window.start + window.size;
            if let Some(marker) = window.marker {
                self.windows.push((window.start, window.size, end - marker));
                if !self.cached.contains(&marker) {
                    self.markers.insert(marker);
                }
            }
            self.cached.extend(window.start..end);
        }

        fn read(&mut self, first: u32, pages: u32) {
            for i in first..first + pages {
                let request = first + pages - i;
                if !self.cached.contains(&i) {
                    let cached = self.cached.clone();
                    let before = |max| (1..=max).take_while(|n| *n <= i && cached.contains(&(i - n))).count();
                    let before = |max| u32::try_from(before(max)).expect("small");
                    let window = self.ra.sync(self.limits, i, request, before);
                    self.submit(window);
                }
                if self.markers.remove(&i) {
                    self.advance(i, request);
                }
            }
            self.ra.read_to(first + pages);
        }

        fn advance(&mut self, i: u32, request: u32) {
            let cached = self.cached.clone();
            let hole = |max| (i + 1..=i + max).find(|p| !cached.contains(p));
            if let Some(window) = self.ra.advance(self.limits, i, request, hole) {
                self.submit(window);
            }
        }

        fn touch(&mut self, i: u32) {
            if self.cached.contains(&i) {
                self.ra.mmap_hits(1);
            } else {
                let window = self.ra.mmap_miss(self.limits, i, false, false);
                self.submit(window.unwrap_or(FileWindow { start: i, size: 1, marker: None }));
            }
            if self.markers.remove(&i) {
                self.advance(i, self.limits.ra_pages);
            }
        }
    }

    fn sequential(limits: RaLimits, pages: u32, windows: usize) -> Vec<(u32, u32, u32)> {
        let mut file = File::new(limits);
        let mut at = 0;
        while file.windows.len() < windows {
            file.read(at, pages);
            at += pages;
        }
        file.windows
    }

    #[test]
    fn sequential_reads_give_the_kernels_windows() {
        let small = [(0, 4, 3), (4, 8, 8), (12, 16, 16), (28, 32, 32), (60, 32, 32)];
        assert_eq!(sequential(SMALL, 1, 5), small, "4 KiB at a time");
        assert_eq!(sequential(SMALL, 4, 4), [(0, 8, 4), (8, 16, 16), (24, 32, 32), (56, 32, 32)], "16 KiB");
    }

    #[test]
    fn files_with_large_folios_are_aligned_more_and_more() {
        let four = [
            (0, 4, 3),
            (4, 8, 8),
            (12, 4, 4),
            (16, 8, 8),
            (24, 8, 8),
            (32, 16, 16),
            (48, 16, 16),
            (64, 32, 32),
            (96, 32, 32),
        ];
        assert_eq!(sequential(LARGE, 1, 9), four, "4 KiB at a time");
        assert_eq!(
            sequential(LARGE, 4, 5),
            [(0, 8, 4), (8, 16, 16), (24, 24, 24), (48, 16, 16), (64, 32, 32)],
            "16 KiB"
        );
        assert_eq!(sequential(LARGE, 32, 2), [(0, 32, 16), (32, 32, 32)], "128 KiB");
        let wide = RaLimits { ra_pages: 2048, ..LARGE };
        let windows =
            [(0, 4, 3), (4, 16, 16), (20, 60, 60), (80, 240, 240), (320, 448, 448), (768, 256, 256), (1024, 512, 512)];
        assert_eq!(sequential(wide, 1, 7), windows, "8 MiB of readahead");
    }

    #[test]
    fn a_read_in_the_middle_is_alone_until_it_is_followed() {
        let mut file = File::new(SMALL);
        (200..206).for_each(|i| file.read(i, 1));
        assert_eq!(file.windows, [(201, 4, 3), (205, 7, 7), (212, 12, 12)]);
        let mut file = File::new(SMALL);
        [10, 12].into_iter().for_each(|i| file.read(i, 1));
        assert_eq!(file.windows, [(12, 4, 3)], "the byte after page 10 lies in page 11, so page 12 follows");
    }

    #[test]
    fn mapped_accesses_are_read_around() {
        let mut file = File::new(SMALL);
        [100, 115, 116, 123, 124, 125, 140, 500, 0, 1, 16, 24, 32].into_iter().for_each(|i| file.touch(i));
        let windows = [(84, 32, 8), (100, 32, 8), (132, 32, 32), (484, 32, 8), (0, 32, 8), (32, 32, 32), (64, 32, 32)];
        assert_eq!(file.windows, windows);
    }
}
