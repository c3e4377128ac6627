//! A timeline as the report draws it: numbers over time, and waits.
//!
//! The file may be anything: what it names is looked up, and what does not fit is passed over.

use std::collections::BTreeMap;

use crate::timeline::{Packet, event_kind, packets};

/// Nanoseconds and a value.
pub(super) type Point = (u64, u64);

/// How a run went.
#[derive(Debug, Default)]
pub(super) struct Course {
    /// Numbers of the run by the name of their line, in the order of time.
    pub(super) numbers: BTreeMap<String, Vec<Point>>,
    /// Waits: when one began, and how long it took.
    pub(super) waits: Vec<Point>,
    /// What the run is called.
    pub(super) name: String,
    /// First and last moment.
    pub(super) span: (u64, u64),
    /// The file ends inside of a packet.
    pub(super) is_cut: bool,
}

/// The name of a line, and which one it lies below.
struct Line {
    name: String,
    parent: Option<u64>,
}

/// Reads a timeline. None: it is none of ours.
pub(super) fn read(bytes: &[u8]) -> Option<Course> {
    let (packets, rest) = packets(bytes);
    let begin = packets.iter().find_map(|packet| packet.clock_snapshot.as_ref()).and_then(|snapshot| {
        snapshot.clocks.iter().find(|clock| clock.clock == snapshot.primary).and_then(|clock| clock.timestamp)
    });
    let begin = begin?;
    let mut course = Course { span: (begin, begin), is_cut: rest > 0, ..Course::default() };
    let mut lines: BTreeMap<u64, Line> = BTreeMap::new();
    let mut open: BTreeMap<u64, u64> = BTreeMap::new();
    for packet in packets {
        course.take(packet, &mut lines, &mut open);
    }
    course.waits.sort_unstable();
    Some(course)
}

impl Course {
    fn take(&mut self, packet: Packet, lines: &mut BTreeMap<u64, Line>, open: &mut BTreeMap<u64, u64>) {
        if let Some(track) = packet.track {
            let process = track.process.unwrap_or_default();
            let name = track.name.or(process.name).unwrap_or_default();
            if lines.is_empty() {
                self.name.clone_from(&name);
            }
            lines.insert(track.uuid.unwrap_or(0), Line { name, parent: track.parent_uuid });
        }
        let (Some(event), Some(at)) = (packet.event, packet.timestamp) else { return };
        let number = event.track.unwrap_or(0);
        let Some(line) = lines.get(&number) else { return };
        self.span.1 = self.span.1.max(at);
        match event.kind {
            Some(event_kind::COUNTER) if line.parent == Some(crate::timeline::RUN) => {
                let value = u64::try_from(event.value.unwrap_or(0)).unwrap_or(0);
                self.numbers.entry(line.name.clone()).or_default().push((at, value));
            }
            Some(event_kind::SLICE_BEGIN) if event.name.as_deref() == Some(crate::timeline::WAIT) => {
                open.insert(number, at);
            }
            Some(event_kind::SLICE_END) => {
                if let Some(since) = open.remove(&number) {
                    self.waits.push((since, at.saturating_sub(since)));
                }
            }
            Some(_) | None => {}
        }
    }

    /// The points of a line, as of its first moment; empty if it has none.
    pub(super) fn line(&self, name: &str) -> &[Point] {
        self.numbers.get(name).map_or(&[], Vec::as_slice)
    }
}
