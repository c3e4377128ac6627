//! Slots against a naive set of free ones, and the order of devices and clusters.

use super::*;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use proptest::prelude::*;

fn spec(slots: u32, priority: Option<i16>) -> DeviceSpec {
    DeviceSpec { slots, priority, rotational: false, synchronous: false, inherited: false }
}

#[test]
fn slots_ascend_and_equal_devices_take_turns_by_cluster() {
    let mut swap = Slots::new(4 * CLUSTER, SlotOrder::Nonfull, 2);
    swap.add_device(DeviceId(0), spec(2 * CLUSTER, Some(3)));
    swap.add_device(DeviceId(1), spec(2 * CLUSTER, Some(3)));
    let places: Vec<(u8, u32)> = (0..4 * CLUSTER - 2)
        .map(|page| {
            let slot = swap.allocate(page, |_| false).expect("a free slot").slot;
            let (device, slot) = swap.locate(slot);
            (device.0, slot.0)
        })
        .collect();
    assert_eq!(places[0], (0, 1), "slot 0 holds the header");
    assert_eq!(places[510], (0, 511));
    assert_eq!(places[511], (1, 1));
    assert_eq!(places[1022], (0, 512));
    assert_eq!(places[1534], (1, 512));
    assert!(swap.allocate(0, |_| false).is_none(), "full");
}

#[test]
fn the_higher_priority_is_filled_first_and_automatic_ones_last() {
    let mut swap = Slots::new(4 * CLUSTER, SlotOrder::Nonfull, 2);
    swap.add_device(DeviceId(0), spec(8, None));
    swap.add_device(DeviceId(1), spec(8, Some(5)));
    swap.add_device(DeviceId(2), spec(8, Some(9)));
    swap.add_device(DeviceId(3), spec(8, None));
    let devices: Vec<u8> = (0..28)
        .map(|page| {
            let slot = swap.allocate(page, |_| false).expect("a free slot").slot;
            swap.locate(slot).0.0
        })
        .collect();
    let want: Vec<u8> = [2, 1, 0, 3].into_iter().flat_map(|d| core::iter::repeat_n(d, 7)).collect();
    assert_eq!(devices, want);
}

#[test]
fn the_emptiest_cluster_is_next_when_none_is_free() {
    let mut swap = Slots::new(4 * CLUSTER, SlotOrder::Emptiest, 8);
    swap.add_device(DeviceId(0), spec(4 * CLUSTER, None));
    let slots: Vec<u32> =
        (0..4 * CLUSTER - 1).map(|page| swap.allocate(page, |_| false).expect("a free slot").slot).collect();
    // 10 free slots in the first cluster, 200 in the third, 100 in the last.
    for (cluster, freed) in [(0, 10), (2, 200), (3, 100)] {
        for slot in slots.iter().filter(|&&slot| slot / CLUSTER == cluster).take(freed) {
            swap.free_slot(*slot);
        }
    }
    let order: Vec<u32> =
        (0..310).map(|page| swap.allocate(page, |_| false).expect("a free slot").slot / CLUSTER).collect();
    let want: Vec<u32> =
        [(2, 200), (3, 100), (0, 10)].into_iter().flat_map(|(c, n)| core::iter::repeat_n(c, n)).collect();
    assert_eq!(order, want);
    assert!(swap.allocate(0, |_| false).is_none(), "full");
}

proptest! {
    #[test]
    fn slots_are_what_a_naive_set_says(
        order in 0..3_usize,
        steps in proptest::collection::vec((0..10u32, any::<u32>()), 0..300),
    ) {
        let order = [SlotOrder::Nonfull, SlotOrder::Free, SlotOrder::Emptiest][order];
        let mut swap = Slots::new(6 * CLUSTER, order, 2);
        let mut free: BTreeSet<(u8, u32)> = BTreeSet::new();
        let mut owned: BTreeMap<u32, u32> = BTreeMap::new();
        let mut pins: BTreeMap<u32, u32> = BTreeMap::new();
        let mut sizes = [0_u32; 3];
        for (kind, x) in steps {
            let d = u8::try_from(x % 3).expect("small");
            let nth = |map: &BTreeMap<u32, u32>| map.keys().nth(x as usize % map.len().max(1)).copied();
            match kind {
                0 if sizes[d as usize] == 0 => {
                    sizes[d as usize] = 600;
                    swap.add_device(DeviceId(d), spec(600, None));
                    free.extend((1..600).map(|s| (d, s)));
                }
                1 if sizes[d as usize] > 0 && sizes[d as usize] < 1_000 => {
                    let size = sizes[d as usize] + 100;
                    swap.grow(DeviceId(d), size);
                    free.extend((sizes[d as usize]..size).map(|s| (d, s)));
                    sizes[d as usize] = size;
                }
                2..=5 => {
                    for page in 0..x % 200 {
                        match swap.allocate(page, |_| false) {
                            Some(found) => {
                                let (device, slot) = swap.locate(found.slot);
                                prop_assert!(free.remove(&(device.0, slot.0)), "slot {slot:?} was not free");
                                prop_assert_eq!(swap.pool_slot(device, slot), Some(found.slot));
                                owned.insert(found.slot, page);
                            }
                            None => prop_assert!(free.is_empty(), "{} slots are free", free.len()),
                        }
                    }
                }
                6 | 7 => {
                    for _ in 0..x % 100 {
                        let Some(slot) = nth(&owned) else { break };
                        owned.remove(&slot);
                        swap.free_slot(slot);
                        if !pins.contains_key(&slot) {
                            let (device, slot) = swap.locate(slot);
                            free.insert((device.0, slot.0));
                        }
                    }
                }
                8 => {
                    if let Some(slot) = nth(&owned) {
                        swap.pin(slot, true);
                        *pins.entry(slot).or_insert(0) += 1;
                    }
                }
                9 => {
                    if let Some(slot) = nth(&pins) {
                        swap.pin(slot, false);
                        *pins.get_mut(&slot).expect("it is pinned") -= 1;
                        if pins[&slot] == 0 {
                            pins.remove(&slot);
                            if !owned.contains_key(&slot) {
                                let (device, slot) = swap.locate(slot);
                                free.insert((device.0, slot.0));
                            }
                        }
                    }
                }
                _ => {}
            }
            swap.audit();
            prop_assert_eq!(swap.free() as usize, free.len());
            for (&slot, &page) in &owned {
                prop_assert_eq!(swap.owner(slot), Some(page));
                prop_assert_eq!(swap.is_pinned(slot), pins.contains_key(&slot));
            }
        }
    }
}

#[test]
fn slots_that_are_not_backed_are_nobodys_until_they_are_again() {
    let mut swap = Slots::new(4 * CLUSTER, SlotOrder::Emptiest, 2);
    let (id, all) = (DeviceId(0), 4 * CLUSTER);
    swap.add_device(id, spec(all, None));
    let given = (SlotIdx(CLUSTER / 2), 2 * CLUSTER);
    assert!(swap.are_unused(id, given.0, given.1) && !swap.are_unused(id, SlotIdx(0), 8));
    swap.set_backed(id, given.0, given.1, false);
    swap.audit();
    assert!(!swap.are_unused(id, given.0, 1) && swap.free() == all - 1 - given.1);
    let mut taken = BTreeSet::new();
    while let Some(found) = swap.allocate(7, |_| false) {
        taken.insert(swap.locate(found.slot).1.0);
    }
    assert!(taken.iter().all(|slot| !(given.0.0..given.0.0 + given.1).contains(slot)));
    assert_eq!((taken.len(), swap.free()), ((all - 1 - given.1) as usize, 0));
    swap.audit();
    // What is closed meanwhile counts as it should afterwards.
    swap.close(id);
    swap.reopen(id);
    swap.set_backed(id, given.0, given.1, true);
    swap.audit();
    assert_eq!(swap.free(), given.1);
    let mut last = 0;
    for _ in 0..given.1 {
        last = swap.allocate(7, |_| false).expect("it is there again").slot;
    }
    assert!(swap.allocate(7, |_| false).is_none());
    swap.free_slot(last);
    swap.audit();
}
