//! The scripts that are compared.

use crate::loop_swap::Device;

/// One set-up and its script.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) script: String,
    /// Pages of each region.
    pub(crate) regions: Vec<u32>,
    /// With 2, the second region belongs to a process of its own.
    pub(crate) processes: u32,
    pub(crate) memory: u32,
    pub(crate) page_cluster: u32,
    pub(crate) vma: bool,
    pub(crate) swappiness: u32,
    pub(crate) devices: Vec<Device>,
    /// Pages of the file; 0: none.
    pub(crate) file: u32,
    /// Its phase `t` plays the recorded program; pages and memory follow from it.
    pub(crate) traced: bool,
    /// What is known of its misses.
    pub(crate) note: &'static str,
}

/// A device that never becomes half full: from there on the kernel frees slots early.
const fn slots(pages: u32) -> u32 {
    pages / 2 * 5
}

impl Row {
    fn new(name: &str, script: &str, pages: u32, memory: u32) -> Self {
        Self {
            name: name.to_owned(),
            script: script.to_owned(),
            regions: vec![pages],
            processes: 1,
            memory,
            page_cluster: 3,
            vma: true,
            swappiness: 60,
            devices: vec![Device { pages: slots(pages), priority: None }],
            file: 0,
            traced: false,
            note: "",
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

    fn regions(mut self, regions: &[u32], processes: u32) -> Self {
        self.regions = regions.to_vec();
        self.processes = processes;
        self
    }

    fn devices(mut self, priorities: [i16; 2]) -> Self {
        let pages = self.pages() * 2;
        self.devices = priorities.map(|p| Device { pages, priority: Some(p) }).to_vec();
        self
    }

    fn file(mut self, pages: u32) -> Self {
        self.file = pages;
        self
    }

    fn swappiness(mut self, swappiness: u32) -> Self {
        self.swappiness = swappiness;
        self
    }

    fn note(mut self, note: &'static str) -> Self {
        self.note = note;
        self
    }

    /// The recorded program in a part of its pages.
    fn traced(name: &str, eighths: u32) -> Self {
        Self { traced: true, memory: eighths, ..Self::new(name, "t t", 1, 0) }
    }

    /// Fills in what a trace of so many pages decides.
    pub(crate) fn with_trace(&self, pages: u32) -> Self {
        if !self.traced {
            return self.clone();
        }
        let devices = vec![Device { pages: slots(pages), priority: None }];
        Self { regions: vec![pages], memory: pages / 8 * self.memory, devices, ..self.clone() }
    }

    /// Pages of all regions.
    pub(crate) fn pages(&self) -> u32 {
        self.regions.iter().sum()
    }

    /// All that the kernel's runs depend on.
    pub(crate) fn setup(&self) -> String {
        format!("{}, {:?}", self.describe(), self.devices)
    }

    /// The set-up in words.
    pub(crate) fn describe(&self) -> String {
        let regions: Vec<String> = self.regions.iter().map(u32::to_string).collect();
        format!(
            "script `{}`, {} pages in {} of memory, {} process(es), page-cluster {}, {} readahead, {} device(s), a file of {} pages, \
             swappiness {}",
            self.script,
            regions.join(" + "),
            self.memory,
            self.processes,
            self.page_cluster,
            if self.vma { "vma" } else { "cluster" },
            self.devices.len(),
            self.file,
            self.swappiness
        )
    }
}

/// Reclaim within a readahead window writes thousands of pages at once.
const BURST: &str = "a burst of some 4,000 writes falls before or after the end of a phase";

/// A branching process: one page that comes back under its own write widens the next window, and that one the next.
const CHAOS: &str = "one hit more or less at the right place changes all windows after it";

/// One count of hits for both regions: without a hit between two misses the next window is half as long.
const SETTLED: &str = "the windows of a phase settle at one page or at eight; the kernel's runs do either";

/// A refault distance is as long as the lists that it is compared with.
const EDGE: &str = "a page more or less decides whether what comes back is activated";

/// All rows.
pub(crate) fn all() -> Vec<Row> {
    let golden = |name: &str, script: &str| Row::new(&format!("golden/{name}"), script, 32_768, 16_384);
    let mut rows = vec![
        golden("sequential", "w r w r r").note(BURST),
        golden("backward", "w b"),
        golden("stride", "w s").note(CHAOS),
        golden("random", "w R40000"),
        golden("random-writes", "w W40000 r"),
        golden("by-slots", "w r").by_slots(),
        golden("random-by-slots", "w R40000").by_slots().note(CHAOS),
        golden("phases", "w r R20000 b s W20000 r"),
        golden("strides", "w s3 s5 s16 s"),
        golden("equal-devices", "w r b").devices([5, 5]),
        golden("ranked-devices", "w r b").devices([5, 9]),
        golden("equal-devices-by-slots", "w r b").devices([5, 5]).by_slots(),
        golden("swapoff", "w L36000 o0"),
        golden("swapoff-by-slots", "w L36000 o0").by_slots(),
        golden("swapoff-to-the-other", "w r o1 r").devices([5, 9]),
        golden("limits", "w r L8192 r L24576 r w").note(BURST),
        golden("two-regions", "w r X x b").regions(&[16_384, 16_384], 1),
        golden("two-regions-by-slots", "w r X x b").regions(&[16_384, 16_384], 1).by_slots().note(SETTLED),
        golden("unequal-regions", "w x R20000 r").regions(&[24_576, 8_192], 1),
        golden("two-processes", "w r X x b").regions(&[16_384, 16_384], 2),
    ];
    for page_cluster in [0, 1, 2, 4, 5, 6] {
        rows.push(golden(&format!("page-cluster-{page_cluster}"), "w r b").cluster(page_cluster));
        rows.push(golden(&format!("page-cluster-{page_cluster}-by-slots"), "w r b").cluster(page_cluster).by_slots());
    }
    for pages in [8_192u32, 65_536, 131_072, 262_144] {
        rows.push(Row::new(&format!("size/{pages}"), "w r w", pages, pages / 2));
        rows.push(Row::new(&format!("size/{pages}-random"), "w R30000", pages, pages / 2));
    }
    for sixteenths in [2u32, 4, 6, 10, 12, 14, 15] {
        let memory = 32_768 / 16 * sixteenths;
        rows.push(Row::new(&format!("limit/{sixteenths}-of-16"), "w r w", 32_768, memory));
        rows.push(Row::new(&format!("limit/{sixteenths}-of-16-random"), "w R30000", 32_768, memory));
    }
    // The player has one region at least: a few pages where only the file matters.
    let file = |name: &str, script: &str| Row::new(&format!("file/{name}"), script, 512, 16_384).file(32_768);
    rows.extend([
        file("calls", "f f f4 f16"),
        file("random-calls", "f F30000 f"),
        file("mapped", "m m M30000 m"),
        file("random-mapped", "M30000 f m"),
        file("fits", "f f m F20000 f16").file(12_288),
        file("nearly-fits", "f F30000 f F30000").file(20_480),
    ]);
    for swappiness in [0, 60, 100, 200] {
        let mixed = |name: &str, script: &str, pages: u32, file: u32| {
            Row::new(&format!("mixed/{name}-{swappiness}"), script, pages, 16_384).file(file).swappiness(swappiness)
        };
        rows.push(mixed("stream", "w a40000 a40000", 12_288, 32_768));
        rows.push(mixed("random", "w A40000 A40000", 12_288, 12_288));
        rows.push(mixed("phases", "w f r m f w", 12_288, 20_480));
        rows.push(mixed("returns", "w f r m f w", 12_288, 12_288));
        // What is evicted comes back at a distance of 12,288 pages, and so many could make room.
        rows.push(mixed("edge", "w f r m f w", 12_288, 16_384).note(EDGE));
    }
    for eighths in [2, 4, 6] {
        rows.push(Row::traced(&format!("program/{eighths}-of-8"), eighths));
    }
    rows
}
