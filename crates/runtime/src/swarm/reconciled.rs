//! After a look, what the runtime knows of the address space is what the kernel has: regions, rights, reasons, fork policies, locks.

use pagetide_kernel::model::{Answer, Call, Extent, ForkPolicy, Kind, Mapping, Quirks, Rights, Tid};

use super::rig::{OWN_VPN, Rig};
use super::{AREA, Dice};
use crate::space::{self, Backing, Standing, Why};

/// Pages that a script is about.
const PAGES: u64 = 300;
/// A mapping of fewer pages stays native.
const SMALL: u64 = 16;

/// The reason that a mapping of the kernel's has to be native, if it is not registered.
fn why(mapping: &Mapping) -> Option<Why> {
    match (mapping.kind, mapping.rights) {
        (Kind::Shared, _) => Some(Why::Shared),
        (Kind::Stack, _) => Some(Why::Stack),
        (Kind::Anon, Rights::None) => Some(Why::NoAccess),
        (Kind::Anon, Rights::Read) => Some(Why::ReadOnly),
        (Kind::Anon, Rights::ReadWrite | Rights::All) => (mapping.end - mapping.start < SMALL).then_some(Why::Small),
    }
}

/// The program's mappings in the kernel.
fn kernels(rig: &Rig) -> Vec<Mapping> {
    rig.world().mappings(rig.pid()).iter().filter(|mapping| mapping.end <= OWN_VPN).copied().collect()
}

/// A look leaves regions and list as the kernel has them. Nothing may be waiting in the kernel's queue.
pub(super) fn assert_reconciled(rig: &mut Rig) {
    assert_reconciled_but(rig, false);
}

/// The same; what mappings have grown by (`may_have_grown`) waits while it cannot be written, and what is left of it while it is small and
/// empty.
pub(super) fn assert_reconciled_but(rig: &mut Rig, may_have_grown: bool) {
    rig.adopt();
    let expected = kernels(rig);
    let table = &rig.pager().machine().mappings;
    let registered = |vpn: u64| expected.iter().any(|m| m.registered && m.start <= vpn && vpn < m.end);
    for region in table.regions() {
        let stray = (region.vpn..region.end_vpn()).find(|&vpn| !registered(vpn));
        assert_eq!(stray, None, "a page of {region:?} is not registered");
    }
    let is_empty = |m: &Mapping| rig.world().resident(rig.pid(), m.start, m.end) == 0;
    let waits = |m: &Mapping| may_have_grown && (!m.rights.allow(true) || m.end - m.start < SMALL && is_empty(m));
    let known = |vpn: &u64| table.page(*vpn).is_some();
    let registered = expected.iter().filter(|m| m.registered);
    let registered_pages: u64 = registered
        .map(|m| if waits(m) { (m.start..m.end).filter(known).count() as u64 } else { m.end - m.start })
        .sum();
    assert_eq!(table.managed_pages(), registered_pages, "what is registered is managed");
    let listed_pages: u64 = table.list().iter().filter(|m| m.to <= OWN_VPN).map(|m| m.to - m.from).sum();
    assert_eq!(listed_pages, expected.iter().map(|m| m.end - m.start).sum::<u64>(), "the list covers what is mapped");
    for found in table.list().iter().filter(|found| found.to <= OWN_VPN) {
        let kernel = expected.iter().find(|m| m.start <= found.from && found.to <= m.end);
        let kernel = kernel.unwrap_or_else(|| panic!("{found:?} is no part of a mapping"));
        let is_managed = kernel.registered && (!waits(kernel) || known(&found.from));
        let standing = if is_managed { Some(Standing::Managed) } else { why(kernel).map(Standing::Native) };
        assert_eq!(Some(found.standing), standing, "{found:?} of {kernel:?}");
        let rights = (found.rights.read, found.rights.write, found.rights.exec);
        assert_eq!(rights, may(kernel.rights), "{found:?} of {kernel:?}");
        let backing = match kernel.kind {
            Kind::Anon => Backing::Anon,
            Kind::Stack => Backing::Stack,
            Kind::Shared => Backing::Shared,
        };
        assert_eq!((found.backing, found.told), (backing, None), "{found:?} of {kernel:?}");
    }
    rig.session.pager.look_at_fork_policies().expect("the model can be read");
    let table = &rig.pager().machine().mappings;
    for kernel in &expected {
        let policy = match kernel.fork {
            ForkPolicy::Copy => space::ForkPolicy::Copy,
            ForkPolicy::Dont => space::ForkPolicy::Dont,
            ForkPolicy::Wipe => space::ForkPolicy::Wipe,
        };
        let mut vpn = kernel.start;
        while vpn < kernel.end {
            let (found, to) = table.fork_policy(vpn, kernel.end);
            assert_eq!(found, policy, "page {vpn} of {kernel:?}");
            vpn = to;
        }
        let inside = table.list().iter().filter(|m| kernel.start <= m.from && m.to <= kernel.end);
        let locked = inside.map(|m| m.told.map(|told| told.locked));
        assert!(locked.into_iter().all(|locked| locked == Some(kernel.locked)), "the lock of {kernel:?}");
    }
}

fn may(rights: Rights) -> (bool, bool, bool) {
    (rights.allow(false), rights.allow(true), rights == Rights::All)
}

/// One call of a script.
fn drawn(dice: &mut Dice) -> Call {
    let start = AREA + dice.below(PAGES);
    let pages = 1 + dice.below((AREA + PAGES - start).min(60));
    let extent = Extent::new(start, pages);
    let rights = [Rights::None, Rights::Read, Rights::ReadWrite, Rights::All][dice.index(4)];
    let policy = [ForkPolicy::Copy, ForkPolicy::Dont, ForkPolicy::Wipe][dice.index(3)];
    match dice.below(21) {
        0..4 => Call::Map(extent),
        4..6 => Call::Unmap(extent),
        6..9 => Call::Remap(extent, Extent::new(AREA + dice.below(PAGES), pages + dice.below(20))),
        9..12 => Call::Protect(extent, rights),
        12 => Call::Discard(extent),
        13 => Call::OnFork(extent, policy),
        14 => Call::Lock(extent),
        15 => Call::Unlock(extent),
        16 => Call::Fork,
        17 => Call::Load(start),
        18 => Call::Grow(extent, 1 + dice.below(20)),
        _ => Call::Store(start, start),
    }
}

fn is_growth(call: Call) -> bool {
    matches!(call, Call::Grow(..)) || matches!(call, Call::Remap(from, to) if from.pages() < to.pages())
}

fn play(rig: &mut Rig, tid: Tid, call: Call) {
    if let Answer::Child(child) = rig.perform(tid, call) {
        rig.world().end_process(child);
    }
}

#[test]
fn after_any_script_what_is_known_of_the_address_space_is_what_the_kernel_has() {
    let settings = [("profile".to_owned(), "pagetide".to_owned())];
    for seed in 1..=40 {
        eprintln!("seed {seed}");
        let mut rig = Rig::new(seed, Quirks::NONE, 400, &settings, 0);
        let pid = rig.pid();
        for (at, kind) in [(0, Kind::Shared), (100, Kind::Stack), (200, Kind::Anon)] {
            let mapping = Mapping { kind, ..Mapping::anon(AREA * 2 + at, AREA * 2 + at + 50) };
            rig.world().map(pid, mapping);
        }
        rig.world().map(pid, Mapping::anon(AREA, AREA + PAGES));
        let tid = rig.world().new_thread(pid);
        rig.adopt();
        let mut dice = Dice::new(seed);
        let grows = seed % 2 == 0;
        for _ in 0..20 {
            for _ in 0..dice.below(12) {
                let call = drawn(&mut dice);
                if grows || !is_growth(call) {
                    play(&mut rig, tid, call);
                }
            }
            assert_reconciled_but(&mut rig, grows);
        }
    }
}
