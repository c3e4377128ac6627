//! The scripts that are compared.

use crate::loop_swap::Device;

/// One set-up and its script.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) script: String,
    pub(crate) pages: u32,
    pub(crate) memory: u32,
    pub(crate) page_cluster: u32,
    pub(crate) vma: bool,
    pub(crate) swappiness: u32,
    pub(crate) devices: Vec<Device>,
}

impl Row {
    fn new(name: &str, script: &str, pages: u32, memory: u32) -> Self {
        Self {
            name: name.to_owned(),
            script: script.to_owned(),
            pages,
            memory,
            page_cluster: 3,
            vma: true,
            swappiness: 60,
            devices: vec![Device { pages: pages * 4, priority: None }],
        }
    }

    fn cluster(mut self, page_cluster: u32) -> Self {
        self.page_cluster = page_cluster;
        self
    }

    fn by_slots(mut self) -> Self {
        self.vma = false;
        self
    }

    fn devices(mut self, priorities: [i16; 2]) -> Self {
        let pages = self.pages * 2;
        self.devices = priorities.map(|p| Device { pages, priority: Some(p) }).to_vec();
        self
    }

    /// The set-up in words.
    pub(crate) fn describe(&self) -> String {
        format!(
            "script `{}`, {} pages in {} of memory, page-cluster {}, {} readahead, {} device(s)",
            self.script,
            self.pages,
            self.memory,
            self.page_cluster,
            if self.vma { "vma" } else { "cluster" },
            self.devices.len()
        )
    }
}

/// All rows.
pub(crate) fn all() -> Vec<Row> {
    let golden = |name: &str, script: &str| Row::new(&format!("golden/{name}"), script, 32_768, 16_384);
    let mut rows = vec![
        golden("sequential", "w r w r r"),
        golden("backward", "w b"),
        golden("stride", "w s"),
        golden("random", "w R40000"),
        golden("random-writes", "w W40000 r"),
        golden("page-cluster-5", "w r").cluster(5),
        golden("page-cluster-0", "w r").cluster(0),
        golden("by-slots", "w r").by_slots(),
        golden("random-by-slots", "w R40000").by_slots(),
        golden("phases", "w r R20000 b s W20000 r"),
        golden("equal-devices", "w r b").devices([5, 5]),
        golden("ranked-devices", "w r b").devices([5, 9]),
    ];
    for page_cluster in [1, 2, 4, 6] {
        rows.push(golden(&format!("page-cluster-{page_cluster}"), "w r b").cluster(page_cluster));
    }
    for pages in [8_192u32, 65_536, 262_144] {
        rows.push(Row::new(&format!("size/{pages}"), "w r w", pages, pages / 2));
        rows.push(Row::new(&format!("size/{pages}-random"), "w R30000", pages, pages / 2));
    }
    for sixteenths in [2u32, 4, 6, 10, 12, 15] {
        let memory = 32_768 / 16 * sixteenths;
        rows.push(Row::new(&format!("limit/{sixteenths}-of-16"), "w r w", 32_768, memory));
        rows.push(Row::new(&format!("limit/{sixteenths}-of-16-random"), "w R30000", 32_768, memory));
    }
    rows
}
