//! What a process did with its time, for `run --timeline`: a ring of spans that its agent fills and the supervisor empties.
//!
//! It lies in the page of shares and counters (`control.rs`), whose memory is taken as it is touched: a run that is not drawn pays a look
//! at one word. One writer, one reader, no lock; a ring that is full drops what is new and counts it. A hostile program may
//! write anything: the reader bounds how much it takes, and the numbers are numbers.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use pagetide_core::types::Nanos;

use crate::control::Entry;
use crate::machine::Answered;
use crate::session::Session;

/// Spans between two looks of the supervisor at most.
const SPANS: usize = 8192;
/// Shorter waits are in the histogram only: a bucket of it ends here.
pub const WAIT_DRAWN_NS: Nanos = 3 << 14;

/// What took its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanKind {
    /// A fault waited for its page, for [`WAIT_DRAWN_NS`] at least.
    Wait {
        /// The thread whose fault it was; 0: the kernel did not say.
        thread: u32,
    },
    /// A device read.
    Read {
        /// So many pages.
        pages: u32,
    },
    /// A device wrote.
    Write {
        /// So many pages.
        pages: u32,
    },
    /// A window of readahead, from when it was ordered to when its last page was there.
    Window {
        /// Its pages, that for which a fault waits included.
        pages: u32,
    },
}

impl SpanKind {
    const fn word(self) -> u64 {
        let (number, tag) = match self {
            Self::Wait { thread } => (thread, 0),
            Self::Read { pages } => (pages, 1),
            Self::Write { pages } => (pages, 2),
            Self::Window { pages } => (pages, 3),
        };
        (number as u64) << 2 | tag
    }

    /// None: no agent wrote that.
    fn of_word(word: u64) -> Option<Self> {
        let number = u32::try_from(word >> 2).ok()?;
        Some(match word & 3 {
            0 => Self::Wait { thread: number },
            1 => Self::Read { pages: number },
            2 => Self::Write { pages: number },
            _ => Self::Window { pages: number },
        })
    }
}

/// From when to when something was done, by the clock of [`RunView::now_ns`](crate::watch::RunView::now_ns).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// What.
    pub kind: SpanKind,
    /// When it began.
    pub begin_ns: Nanos,
    /// When it ended; not before it began.
    pub end_ns: Nanos,
}

/// The spans of a process since the last look.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessSpans {
    /// The process.
    pub pid: u32,
    /// In no order.
    pub spans: Vec<Span>,
    /// Spans that found no room.
    pub dropped: u64,
}

/// One span: when it began, when it ended, its kind.
#[derive(Debug)]
#[repr(C)]
struct Words([AtomicU64; 3]);

/// The ring.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Spans {
    /// Set by the supervisor before the agent hears anything.
    is_wanted: AtomicU32,
    /// Spans that were ever written, by the agent.
    written: AtomicU64,
    /// Spans that were ever taken, by the supervisor.
    taken: AtomicU64,
    dropped: AtomicU64,
    words: [Words; SPANS],
}

impl Spans {
    /// From now on the agent writes.
    pub(crate) fn want(&self) {
        self.is_wanted.store(1, Ordering::Release);
    }

    pub(crate) fn is_wanted(&self) -> bool {
        self.is_wanted.load(Ordering::Acquire) == 1
    }

    fn place(&self, number: u64) -> &[AtomicU64; 3] {
        let index = usize::try_from(number % SPANS as u64).expect("less than the ring");
        &self.words[index].0
    }

    /// Write a span. The agent's thread only.
    pub(crate) fn push(&self, span: Span) {
        let written = self.written.load(Ordering::Relaxed);
        if written.wrapping_sub(self.taken.load(Ordering::Acquire)) >= SPANS as u64 {
            self.drop_more(1);
            return;
        }
        for (word, value) in self.place(written).iter().zip([span.begin_ns, span.end_ns, span.kind.word()]) {
            word.store(value, Ordering::Relaxed);
        }
        self.written.store(written.wrapping_add(1), Ordering::Release);
    }

    /// So many spans found no room before they came here.
    pub(crate) fn drop_more(&self, spans: u64) {
        self.dropped.fetch_add(spans, Ordering::Relaxed);
    }

    /// Take what was written, if anything was. The supervisor only.
    pub(crate) fn take(&self, pid: u32) -> Option<ProcessSpans> {
        let (written, taken) = (self.written.load(Ordering::Acquire), self.taken.load(Ordering::Relaxed));
        let count = written.wrapping_sub(taken).min(SPANS as u64);
        let spans: Vec<_> = (0..count).filter_map(|number| read(self.place(taken.wrapping_add(number)))).collect();
        self.taken.store(written, Ordering::Release);
        let dropped = self.dropped.swap(0, Ordering::Relaxed);
        (!spans.is_empty() || dropped > 0).then_some(ProcessSpans { pid, spans, dropped })
    }
}

/// The faults that were answered go into the histogram; if they are drawn, those that waited long and the requests that have ended
/// go into the ring.
pub(crate) fn publish(entry: &Entry, session: &mut Session) {
    let is_drawn = entry.spans.is_wanted();
    session.count_latencies(|bucket, Answered { thread, since, ns, .. }| {
        entry.note_latency(bucket);
        if is_drawn && ns >= WAIT_DRAWN_NS {
            entry.spans.push(Span { kind: SpanKind::Wait { thread }, begin_ns: since, end_ns: since + ns });
        }
    });
    if is_drawn {
        let lost = session.pager.machine_mut().take_requests(|span| entry.spans.push(span));
        entry.spans.drop_more(lost);
    }
}

/// None: no agent wrote that.
fn read(words: &[AtomicU64; 3]) -> Option<Span> {
    let [begin_ns, end_ns, what] = words.each_ref().map(|word| word.load(Ordering::Relaxed));
    let kind = SpanKind::of_word(what)?;
    (begin_ns <= end_ns).then_some(Span { kind, begin_ns, end_ns })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring() -> Box<Spans> {
        Box::new(Spans {
            is_wanted: AtomicU32::new(0),
            written: AtomicU64::new(u64::MAX - 5),
            taken: AtomicU64::new(u64::MAX - 5),
            dropped: AtomicU64::new(0),
            words: std::array::from_fn(|_| Words([const { AtomicU64::new(0) }; 3])),
        })
    }

    const fn span(begin_ns: Nanos) -> Span {
        Span { kind: SpanKind::Write { pages: 64 }, begin_ns, end_ns: begin_ns + 9 }
    }

    #[test]
    fn what_is_written_is_taken_once_and_the_rest_is_counted() {
        let ring = ring();
        (0..SPANS as u64 + 3).for_each(|number| ring.push(span(number)));
        let taken = ring.take(7).expect("spans were written");
        assert_eq!((taken.pid, taken.spans.len(), taken.dropped), (7, SPANS, 3));
        assert_eq!((taken.spans[0], taken.spans[SPANS - 1].begin_ns), (span(0), SPANS as u64 - 1));
        ring.push(span(100));
        assert_eq!(ring.take(7), Some(ProcessSpans { pid: 7, spans: vec![span(100)], dropped: 0 }));
        assert_eq!(ring.take(7), None);
    }

    #[test]
    fn every_kind_is_read_as_it_was_written() {
        let most = u32::MAX;
        for kind in [
            SpanKind::Wait { thread: most },
            SpanKind::Read { pages: 1 },
            SpanKind::Write { pages: 0 },
            SpanKind::Window { pages: most },
        ] {
            assert_eq!(SpanKind::of_word(kind.word()), Some(kind));
        }
        assert_eq!(SpanKind::of_word(1 << 34), None);
    }

    #[test]
    fn forged_words_are_bounded_and_sorted_out() {
        let ring = ring();
        ring.push(span(1));
        ring.place(u64::MAX - 5)[1].store(0, Ordering::Relaxed);
        ring.written.store(u64::MAX / 2, Ordering::Relaxed);
        let taken = ring.take(7).expect("spans were written").spans;
        assert!(taken.len() <= SPANS && taken.iter().all(|span| span.begin_ns <= span.end_ns), "{}", taken.len());
    }

    #[test]
    fn a_bucket_of_the_histogram_ends_where_waits_begin_to_be_drawn() {
        let bucket = crate::control::latency_bucket(WAIT_DRAWN_NS);
        assert_eq!(crate::control::latency_of_bucket(bucket - 1), WAIT_DRAWN_NS - 1);
    }
}
