//! Requests to the devices: what goes into one, the checksums, and what its end means.

use pagetide_core::event::{Event, Outcome};
use pagetide_core::types::{DeviceId, IoId, PageIdx, PageRange, SlotIdx};
use pagetide_driver::Answers;
use pagetide_kernel::AddressSpace;
use pagetide_sys::{Errno, file};

use super::LiveMachine;
use crate::frames::{Frame, FrameRun};
use crate::io::{Direction, PagePart, Passed, Passing, REQUEST_PAGES};
use crate::limits;
use crate::spans::{Span, SpanKind};
use crate::store::checksum;
use crate::tier::Offer;

/// Ended requests that are noted between two looks at most.
const REQUESTS_NOTED: usize = 1024;

impl<K: AddressSpace> LiveMachine<K> {
    /// The process may keep so many pages from now on.
    pub(crate) fn limit_requests(&mut self, budget_pages: u32) {
        self.requests.limit(budget_pages);
    }

    /// Hand waiting transfers to the engine, which passes them on at the next flush or wait.
    /// `is_gathering`: a few writes may wait for more.
    pub(crate) fn begin_requests(&mut self, is_gathering: bool, answers: &mut Answers) {
        while self.begin_request(is_gathering, answers) {}
    }

    /// The same for the read of one page, and those that wait before it.
    pub(crate) fn begin_read_of(&mut self, page: PageIdx, answers: &mut Answers) {
        while self.requests.waits_to_read(page) && self.begin_request(true, answers) {}
    }

    /// The next request, if one may begin.
    fn begin_request(&mut self, is_gathering: bool, answers: &mut Answers) -> bool {
        let Some((token, direction)) = self.requests.begin(is_gathering) else { return false };
        match direction {
            Direction::Read => self.gather_read(token, answers),
            Direction::Write => self.gather_write(token, answers),
        }
        let request = self.requests.get(token);
        let (is_empty, is_blocked) = (request.len == 0, request.is_blocked);
        if is_empty {
            self.requests.end(token);
        } else {
            self.submit(token);
        }
        !is_blocked
    }

    /// Pass on what is queued, without waiting.
    pub(crate) fn flush(&mut self) {
        self.engine.flush();
    }

    /// Requests are queued that were not passed on.
    pub(crate) fn has_unsubmitted(&self) -> bool {
        self.engine.has_unsubmitted()
    }

    /// See [`crate::io::Engine::begin_passing`].
    pub(crate) fn begin_passing(&mut self, caller: i32) -> Option<Passing> {
        self.engine.begin_passing(caller)
    }

    /// See [`crate::io::Engine::end_passing`].
    pub(crate) fn end_passing(&mut self, passed: &Passed) {
        self.engine.end_passing(passed);
    }

    fn next_page(&mut self, token: u32) -> Option<(PageIdx, SlotIdx, IoId)> {
        let stores = &self.stores;
        let is_divided = |device| stores.iter().any(|(id, store)| *id == device && store.is_divided());
        self.requests.next_page(token, is_divided)
    }

    /// Gather pages as long as their slots are neighbours; answer for those that are in memory, compressed.
    fn gather_read(&mut self, token: u32, answers: &mut Answers) {
        let mut ended = Ended::default();
        while let Some((page, slot, io)) = self.next_page(token) {
            let device = self.requests.get(token).device;
            match self.read_from_tier(page, device, slot) {
                Some(outcome) => {
                    self.window_goes_on(io);
                    ended.push(io, page, outcome, answers);
                }
                None => self.requests.add(token, slot, PagePart { page, io, sum: 0 }),
            }
        }
        ended.finish(answers);
        self.stats.read_requests += u64::from(self.requests.get(token).len > 0);
    }

    /// Hash the pages; answer for those that need no write; gather the others as long as their slots are neighbours.
    fn gather_write(&mut self, token: u32, answers: &mut Answers) {
        let mut ended = Ended::default();
        while let Some((page, slot, io)) = self.next_page(token) {
            let frame = self.frame(page).expect("a page under write has its frame");
            let sum = self.frame_sum(frame);
            let device = self.requests.get(token).device;
            let outcome = if sum == self.zero_sum {
                Outcome::Zero
            } else if self.store(device).sum(slot) == sum {
                Outcome::Unchanged
            } else {
                match self.offer_to_tier(page, device, slot) {
                    Offer::Held => {
                        self.store(device).set_sum(slot, sum);
                        Outcome::Done
                    }
                    Offer::Wait => {
                        self.requests.put_back(token, io, slot, page);
                        break;
                    }
                    Offer::Declined => {
                        // Until the write is done the slot holds neither the old page nor surely the new one.
                        self.store(device).set_sum(slot, 0);
                        self.requests.add(token, slot, PagePart { page, io, sum });
                        continue;
                    }
                }
            };
            ended.push(io, page, outcome, answers);
            if self.requests.get(token).len > 0 {
                break;
            }
        }
        ended.finish(answers);
        self.stats.write_requests += u64::from(self.requests.get(token).len > 0);
    }

    pub(super) fn submit(&mut self, token: u32) {
        let request = self.requests.get(token);
        let (device, slot, len) = (request.device, request.slot, request.len);
        let store = self.store(device);
        let place = (store.file().raw(), store.offset(slot));
        let mut runs = [FrameRun { first: Frame(0), len: 0 }; REQUEST_PAGES];
        let mut count = 0;
        for index in 0..len {
            let page = self.requests.get(token).parts[index].page;
            let frame = self.frame(page).expect("a page in flight has its frame");
            if count > 0 && runs[count - 1].first.0 + runs[count - 1].len == frame.0 {
                runs[count - 1].len += 1;
            } else {
                runs[count] = FrameRun { first: frame, len: 1 };
                count += 1;
            }
        }
        let staging = &self.staging;
        self.requests.fill(token, place, runs[..count].iter().map(|&run| staging.memory(run)));
        let now = self.space.now();
        self.requests.note_begin(token, now);
        if self.requests.get(token).direction == Direction::Read {
            self.stalls.begin_read(now);
        }
        self.engine.submit(token, self.requests.get(token));
    }

    /// From now on it is noted when requests and windows of readahead begin and end.
    pub(crate) fn note_requests(&mut self) {
        self.request_spans.reserve(REQUESTS_NOTED);
    }

    /// The requests and windows that have ended since the last call, and how many more there were.
    pub(crate) fn take_requests(&mut self, each: impl FnMut(Span)) -> u64 {
        self.request_spans.drain(..).for_each(each);
        std::mem::take(&mut self.request_spans_lost)
    }

    /// Collect finished requests.
    pub(crate) fn reap(&mut self, answers: &mut Answers) {
        let mut done = [(0_u32, Ok(0_usize)); 64];
        loop {
            let mut count = 0;
            self.engine.reap(&mut |token, result| {
                done[count] = (token, result);
                count += 1;
                count < done.len()
            });
            for &(token, result) in &done[..count] {
                self.end_request(token, result, answers);
            }
            if count < done.len() {
                break;
            }
        }
    }

    /// Take the results that are there, and do nothing with them: the pages are not needed any more.
    pub(crate) fn abandon_results(&mut self) {
        self.engine.flush();
        let requests = &mut self.requests;
        self.engine.reap(&mut |token, _result| {
            requests.end(token);
            true
        });
    }

    fn end_request(&mut self, token: u32, result: Result<usize, Errno>, answers: &mut Answers) {
        self.ended = self.ended.wrapping_add(1);
        let result = self.written_beyond_a_limit(token, result);
        self.note_request(token);
        let request = self.requests.get(token);
        if request.is_own {
            let is_done = result == Ok(request.bytes());
            self.requests.end(token);
            self.end_tier_write(token, is_done);
            return;
        }
        let (direction, device, len) = (request.direction, request.device, request.len);
        let is_done = result == Ok(request.bytes());
        let is_hopeless = direction == Direction::Write && self.store(device).note_write(is_done);
        let outcome = match result {
            _ if is_done => Outcome::Done,
            _ if is_hopeless => Outcome::NoSpace,
            Err(Errno::ENOSPC | Errno::EDQUOT) if direction == Direction::Write => Outcome::NoSpace,
            Ok(_) | Err(_) => Outcome::Failed,
        };
        let mut ended = Ended::default();
        for index in 0..len {
            let part = self.requests.get(token).parts[index];
            let slot = self.requests.get(token).slot_at(index);
            let outcome = match (direction, outcome) {
                (Direction::Write, Outcome::Done) => {
                    self.store(device).set_sum(slot, part.sum);
                    outcome
                }
                (Direction::Read, Outcome::Done) if !self.is_intact(part.page, device, slot) => Outcome::Failed,
                _ => outcome,
            };
            if direction == Direction::Read {
                self.note_disk_wait(part.page);
                self.window_goes_on(part.io);
                if outcome == Outcome::Failed {
                    self.store(device).note_lost(1);
                }
            }
            ended.push(part.io, part.page, outcome, answers);
        }
        ended.finish(answers);
        self.requests.end(token);
    }

    /// Count a request that has ended.
    fn note_request(&mut self, token: u32) {
        let request = self.requests.get(token);
        let (begin_ns, end_ns) = (request.begun, self.space.now());
        let took = end_ns.saturating_sub(begin_ns);
        match request.direction {
            Direction::Read => {
                self.stats.read_ns += took;
                self.stalls.end_read(end_ns);
            }
            Direction::Write => self.stats.write_ns += took,
        }
        if let Some((_, store)) = self.stores.iter_mut().find(|(id, _)| *id == request.device) {
            store.note_request(request.direction, request.len, took);
        }
        let pages = u32::try_from(request.len).expect("a small constant");
        let kind = match request.direction {
            Direction::Read => SpanKind::Read { pages },
            Direction::Write => SpanKind::Write { pages },
        };
        self.note_span(Span { kind, begin_ns, end_ns });
    }

    /// For those who draw, if there are any.
    pub(super) fn note_span(&mut self, span: Span) {
        if self.request_spans.len() < self.request_spans.capacity() {
            self.request_spans.push(span);
        } else if self.request_spans.capacity() > 0 {
            self.request_spans_lost += 1;
        }
    }

    /// A write that ended short because the program has limited the size of files is made again, here and now, without the limit.
    fn written_beyond_a_limit(&mut self, token: u32, result: Result<usize, Errno>) -> Result<usize, Errno> {
        let request = self.requests.get(token);
        if request.direction == Direction::Read || result == Ok(request.bytes()) {
            return result;
        }
        let Some(_raised) = limits::for_file_size() else { return result };
        let (device, offset) = (request.device, request.offset);
        let Some((_, store)) = self.stores.iter().find(|(id, _)| *id == device) else { return result };
        file::pwritev(store.file(), self.requests.get(token).pieces(), offset, 0)
    }

    /// True if what was read into the page's frame is what was written to the slot.
    pub(super) fn is_intact(&mut self, page: PageIdx, device: DeviceId, slot: SlotIdx) -> bool {
        let frame = self.frame(page).expect("a page in flight has its frame");
        self.frame_sum(frame) == self.store(device).sum(slot)
    }

    /// The checksum of a frame that is held by us alone: it has left the program, and no request writes it.
    fn frame_sum(&self, frame: Frame) -> u128 {
        self.space.look(self.frame_memory(frame), |bytes| checksum(self.seed, bytes))
    }
}

/// Pages that have ended one after the other, to be answered for together.
#[derive(Default)]
struct Ended {
    run: Option<(IoId, PageRange, Outcome)>,
}

impl Ended {
    fn push(&mut self, io: IoId, page: PageIdx, outcome: Outcome, answers: &mut Answers) {
        if let Some((last_io, range, last)) = &mut self.run
            && (*last_io, *last, range.end()) == (io, outcome, page)
        {
            range.len += 1;
            return;
        }
        self.finish(answers);
        self.run = Some((io, PageRange::one(page), outcome));
    }

    fn finish(&mut self, answers: &mut Answers) {
        if let Some((io, range, outcome)) = self.run.take() {
            answers.push(Event::IoDone { io, range, outcome });
        }
    }
}
