//! Threads of one process that pass addresses on to each other: each maps, fills, moves, cuts and unmaps memory of its own wherever there is
//! room, which may be where another one's was a moment ago and what became of that is not told yet.
//!
//! As in signal mode, a call that takes memory away, or an mremap, begins when the one before has been told.

use std::collections::VecDeque;

use pagetide_kernel::model::{Answer, Call, Extent, Happened, Quirks, Tid};
use pagetide_sys::Errno;

use super::Dice;
use super::reconciled::assert_reconciled;
use super::rig::Rig;

/// Where all of them have their memory.
const GROUND: u64 = 1 << 13;
/// So little room that addresses come back soon.
const GROUND_PAGES: u64 = 700;
const THREADS: usize = 4;
const PAGES_MAX: u64 = 60;
const PIECES: usize = 3;
const TURNS: u32 = 4_000;

/// Memory of a thread, and what is in it.
#[derive(Clone, Debug)]
struct Piece {
    place: Extent,
    values: Vec<u64>,
}

impl Piece {
    fn is_now_at(&mut self, place: Extent) {
        self.place = place;
        self.values.resize(usize::try_from(place.pages()).expect("few"), 0);
    }
}

/// What a thread has begun, and what is true once that has ended well.
#[derive(Debug)]
enum Doing {
    Nothing,
    Loads(Vec<u64>),
    Stores,
    /// It has this memory then, in place of the piece.
    Maps(Extent),
    /// Room to move the piece to.
    MapsFor(usize, Extent),
    Moves(usize, Extent),
    /// So many pages more where it is, if there is room.
    Grows(usize, u64),
    /// The same, and its old place is kept: to be found empty, and to be unmapped.
    Keeps(usize, Extent),
    Leaves(Extent),
    Unmaps,
    Cuts(usize, u64),
}

#[derive(Debug)]
struct Member {
    tid: Tid,
    pieces: Vec<Piece>,
    doing: Doing,
    /// Calls that have not ended.
    left: usize,
}

#[derive(Debug)]
struct Crowd {
    rig: Rig,
    dice: Dice,
    members: Vec<Member>,
    /// Calls that take memory away, of which the first is under way.
    leaving: VecDeque<(Tid, Call)>,
    stored: u64,
    checked: u64,
}

impl Crowd {
    fn new(seed: u64) -> Self {
        let settings = [("profile".to_owned(), "pagetide".to_owned())];
        let mut dice = Dice::new(seed);
        let quirks = Quirks { interlude: 500 + u32::try_from(dice.below(6_000)).expect("small"), ..Quirks::NONE };
        let share = 64 + u32::try_from(dice.below(100)).expect("small");
        let rig = Rig::new(seed, quirks, share, &settings, 0);
        let member = |tid| Member { tid, pieces: Vec::new(), doing: Doing::Nothing, left: 0 };
        let members = (0..THREADS).map(|_| member(rig.world().new_thread(rig.pid()))).collect();
        Self { rig, dice, members, leaving: VecDeque::new(), stored: 0, checked: 0 }
    }

    fn anywhere(&mut self, pages: u64) -> Extent {
        Extent::new(GROUND + self.dice.below(GROUND_PAGES - pages), pages)
    }

    /// What a thread does next, which has nothing under way.
    fn plan(&mut self, index: usize) {
        let (count, which) = (self.members[index].pieces.len(), self.dice.index(PIECES));
        let Some(piece) = self.members[index].pieces.get(which).cloned() else {
            if count < PIECES {
                let pages = 1 + self.dice.below(PAGES_MAX);
                let place = self.anywhere(pages);
                self.begin(index, Doing::Maps(place), [Call::Map(place)]);
            }
            return;
        };
        let (start, pages) = (piece.place.start, piece.place.pages());
        let from = self.dice.below(pages);
        let to = from + 1 + self.dice.below(pages - from);
        let range = |from: u64, to: u64| usize::try_from(from).expect("few")..usize::try_from(to).expect("few");
        match self.dice.below(32) {
            0..8 => {
                let stores = (from..to).map(|page| {
                    self.stored += 1;
                    (page, self.stored)
                });
                let stores: Vec<_> = stores.collect();
                for &(page, value) in &stores {
                    self.members[index].pieces[which].values[range(page, page + 1)][0] = value;
                }
                let calls = stores.into_iter().map(|(page, value)| Call::Store(start + page, value));
                self.begin(index, Doing::Stores, calls);
            }
            8..16 => {
                let mut expected = piece.values[range(from, to)].to_vec();
                expected.reverse();
                self.begin(index, Doing::Loads(expected), (from..to).map(|page| Call::Load(start + page)));
            }
            16 if pages < PAGES_MAX => {
                let more = 1 + self.dice.below(20);
                self.begin(index, Doing::Grows(which, more), [Call::Grow(piece.place, more)]);
            }
            17..22 => {
                let more = if pages < PAGES_MAX { self.dice.below(2) * self.dice.below(20) } else { 0 };
                let place = self.anywhere(pages + more);
                self.begin(index, Doing::MapsFor(which, place), [Call::Map(place)]);
            }
            22..24 => {
                self.members[index].pieces[which].values[range(from, to)].fill(0);
                self.begin(index, Doing::Stores, [Call::Discard(Extent::new(start + from, to - from))]);
            }
            24..26 if from > 0 => {
                let cut = Extent::new(start + from, pages - from);
                self.begin(index, Doing::Cuts(which, from), [Call::Unmap(cut)]);
            }
            26..29 => {
                self.members[index].pieces.remove(which);
                self.begin(index, Doing::Unmaps, [Call::Unmap(piece.place)]);
            }
            _ => {}
        }
    }

    fn begin(&mut self, index: usize, doing: Doing, calls: impl IntoIterator<Item = Call>) {
        let member = &mut self.members[index];
        member.doing = doing;
        for call in calls {
            member.left += 1;
            if matches!(call, Call::Unmap(_) | Call::Remap(..) | Call::RemapKeeping(..) | Call::Grow(..)) {
                self.leaving.push_back((member.tid, call));
                if self.leaving.len() > 1 {
                    continue;
                }
            }
            self.rig.world().will(member.tid, call);
        }
    }

    fn hear(&mut self) {
        let log = self.rig.world().take_log();
        for happened in log {
            let Happened::Ended(tid, call, answer) = happened else { continue };
            if self.leaving.front() == Some(&(tid, call)) {
                self.leaving.pop_front();
                if let Some(&(tid, call)) = self.leaving.front() {
                    self.rig.world().will(tid, call);
                }
            }
            if let Some(index) = self.members.iter().position(|member| member.tid == tid) {
                self.ended(index, answer);
            }
        }
    }

    /// The threads go on, and the pager makes a turn.
    fn turn(&mut self) {
        let threads: Vec<Tid> = self.rig.world().threads().collect();
        for _ in 0..self.dice.below(12) {
            let tid = threads[self.dice.index(threads.len())];
            self.rig.world().step(tid);
        }
        if self.dice.chance(1_000) {
            self.rig.adopt();
        }
        self.rig.ground.disk.end_one(&mut self.dice);
        self.rig.turn(&mut self.dice);
        self.rig.world().pass(20_000);
        self.hear();
        for index in 0..self.members.len() {
            if let Member { left: 0, doing: Doing::Leaves(old), .. } = self.members[index] {
                self.begin(index, Doing::Unmaps, [Call::Unmap(old)]);
            }
        }
    }

    fn run(&mut self) {
        for _ in 0..TURNS {
            for index in 0..self.members.len() {
                if self.members[index].left == 0 {
                    self.plan(index);
                }
            }
            self.turn();
        }
        self.rig.world().calm();
        self.settle();
        for index in 0..self.members.len() {
            for piece in std::mem::take(&mut self.members[index].pieces) {
                let loads = (piece.place.start..piece.place.end).map(Call::Load);
                let expected = piece.values.into_iter().rev().collect();
                self.begin(index, Doing::Loads(expected), loads);
                self.settle();
            }
        }
        self.rig.pager().core().audit();
        assert_reconciled(&mut self.rig);
    }

    /// What is under way comes to its end.
    fn settle(&mut self) {
        for _ in 0..super::CALM_TURNS {
            if self.members.iter().all(|member| member.left == 0) {
                return;
            }
            self.turn();
        }
        panic!("a thread does not come to its end: {:?}", self.members);
    }

    fn ended(&mut self, index: usize, answer: Answer) {
        let member = &mut self.members[index];
        member.left -= 1;
        if let (Doing::Loads(expected), Answer::Value(value)) = (&mut member.doing, answer) {
            assert_eq!(Some(value), expected.pop(), "wrong bytes");
            self.checked += 1;
            return;
        }
        if let (Doing::Leaves(_), Answer::Value(value)) = (&member.doing, answer) {
            assert_eq!(value, 0, "what was moved away is still at its old place");
            return;
        }
        // There was no room.
        if let (Doing::Maps(_) | Doing::MapsFor(..) | Doing::Grows(..), Answer::Failed(_)) = (&member.doing, answer) {
            member.doing = Doing::Nothing;
            return;
        }
        // It is several mappings at present, because a part of it was registered first: live, `remap` moves them one by one.
        if let (&Doing::Moves(_, room) | &Doing::Keeps(_, room), Answer::Failed(Errno::EFAULT)) =
            (&member.doing, answer)
        {
            return self.begin(index, Doing::Unmaps, [Call::Unmap(room)]);
        }
        assert_eq!(answer, Answer::Done, "{member:?}");
        match std::mem::replace(&mut member.doing, Doing::Nothing) {
            Doing::Maps(place) => {
                member.pieces.push(Piece { place, values: vec![0; usize::try_from(place.pages()).expect("few")] });
            }
            Doing::MapsFor(which, room) => {
                let from = member.pieces[which].place;
                if from.pages() < room.pages() || self.dice.chance(5_000) {
                    self.begin(index, Doing::Moves(which, room), [Call::Remap(from, room)]);
                } else {
                    self.begin(index, Doing::Keeps(which, room), [Call::RemapKeeping(from, room.start)]);
                }
            }
            Doing::Moves(which, room) => member.pieces[which].is_now_at(room),
            Doing::Grows(which, more) => {
                let Extent { start, end } = member.pieces[which].place;
                member.pieces[which].is_now_at(Extent { start, end: end + more });
            }
            Doing::Keeps(which, room) => {
                let old = member.pieces[which].place;
                member.pieces[which].is_now_at(room);
                let loads = (old.start..old.end).step_by(7).map(Call::Load);
                self.begin(index, Doing::Leaves(old), loads);
            }
            Doing::Cuts(which, pages) => {
                let start = member.pieces[which].place.start;
                member.pieces[which].is_now_at(Extent::new(start, pages));
            }
            doing @ (Doing::Nothing | Doing::Loads(_) | Doing::Stores | Doing::Leaves(_) | Doing::Unmaps) => {
                member.doing = doing;
            }
        }
    }
}

#[test]
fn threads_that_pass_addresses_on_lose_no_store_where_one_at_a_time_takes_memory_away() {
    let mut checked = 0;
    for seed in super::seeds(super::SEEDS, &[]).0 {
        eprintln!("seed {seed}");
        let mut crowd = Crowd::new(seed);
        crowd.run();
        checked += crowd.checked;
    }
    assert!(checked > 1_000, "{checked} loads were checked");
}
