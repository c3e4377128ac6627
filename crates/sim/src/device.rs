//! Devices as tables of parameters, each number with its reason.
//!
//! The tables are typical devices, to be named in a workload; [`crate::disk`] turns one into queues and times.

use pagetide_core::types::Nanos;

/// How a device behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mechanism {
    /// Any place is as near as any other; several requests at once (flash, remote memory).
    Parallel,
    /// A head moves over a spinning disk; one request at a time.
    Rotational,
    /// The CPU does it inside the call (compressed memory).
    Synchronous,
}

/// One device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceParams {
    /// Name of the table it came from.
    pub preset: &'static str,
    /// How it behaves.
    pub mechanism: Mechanism,
    /// Reads served at once.
    pub channels: u32,
    /// A read's time before its first page, on an idle device.
    pub read_ns: Nanos,
    /// A write's.
    pub write_ns: Nanos,
    /// Each page of a read takes so much of the device's time, which reads and writes share.
    pub read_page_ns: Nanos,
    /// Each page of a write.
    pub write_page_ns: Nanos,
    /// Parallel: each page of a read takes so long to leave its place, others at the same time.
    pub channel_page_ns: Nanos,
    /// Parallel: pages of writes that the device's own memory holds.
    pub buffer_pages: u32,
    /// Parallel: when that memory is full, a read finds its place busy with a write for up to so long.
    pub program_ns: Nanos,
    /// Parallel: of 10,000 flash pages of a read, so many then lie where a block is being erased...
    pub erase_share_bp: u32,
    /// ... and wait for up to so long.
    pub erase_ns: Nanos,
    /// Time of the host's CPU for a request: submission, interrupt, completion; of a synchronous device, per request.
    pub cpu_ns: Nanos,
    /// Spread of the time before the first page: up to so many 1/10,000 more or less.
    pub jitter_bp: u32,
    /// Rotational: move to the next track, and over the whole disk.
    pub seek_ns: (Nanos, Nanos),
    /// Rotational: one turn.
    pub turn_ns: Nanos,
    /// Rotational: pages of the whole disk, over which `seek_ns.1` is the way.
    pub disk_pages: u64,
}

/// A named device with the reason of its numbers.
#[derive(Debug)]
pub struct Preset {
    /// Its name in a workload.
    pub name: &'static str,
    /// What it stands for.
    pub what: &'static str,
    /// The numbers.
    pub params: DeviceParams,
    /// Why these numbers.
    pub reasons: &'static [(&'static str, &'static str)],
}

const US: Nanos = 1_000;
const MS: Nanos = 1_000_000;

const FLASH: DeviceParams = DeviceParams {
    preset: "nvme",
    mechanism: Mechanism::Parallel,
    channels: 32,
    read_ns: 75 * US,
    write_ns: 20 * US,
    read_page_ns: 1_600,
    write_page_ns: 3_200,
    channel_page_ns: 5 * US,
    buffer_pages: 4_096,
    program_ns: 300 * US,
    erase_share_bp: 0,
    erase_ns: 0,
    cpu_ns: 2_500,
    jitter_bp: 2_500,
    seek_ns: (0, 0),
    turn_ns: 0,
    disk_pages: 0,
};

/// All named devices.
pub static PRESETS: [Preset; 6] = [
    Preset {
        name: "nvme",
        what: "data-centre NVMe flash disk of about 2017",
        params: FLASH,
        reasons: &[
            ("read_ns", "4 KiB random read at queue depth 1: 75 to 90 us in data sheets of TLC and MLC disks"),
            ("write_ns", "goes to the disk's own memory: 20 us"),
            ("read_page_ns", "2.5 GB/s, four PCIe 3 lanes less protocol"),
            ("write_page_ns", "1.3 GB/s sustained"),
            (
                "channel_page_ns",
                "a flash channel of 800 MB/s; 32 KiB at queue depth 1 take 40 to 50 us more than 4 KiB",
            ),
            ("buffer_pages", "16 MiB of memory that capacitors keep alive"),
            (
                "program_ns",
                "a flash page programs for 1 to 2 ms and lets reads in between; fitted to S0, see reproduce/vma.rs",
            ),
            ("channels", "about 430,000 random reads/s are 32 at 75 us"),
            ("cpu_ns", "submission, interrupt and completion in the block layer: 2 to 3 us"),
            ("jitter_bp", "median to 95th percentile of idle reads: a quarter"),
        ],
    },
    Preset {
        name: "sata-ssd",
        what: "SATA flash disk",
        params: DeviceParams {
            preset: "sata-ssd",
            channels: 10,
            read_ns: 100 * US,
            write_ns: 60 * US,
            read_page_ns: 7_700,
            write_page_ns: 8_400,
            channel_page_ns: 0,
            buffer_pages: 0,
            program_ns: 0,
            cpu_ns: 4_000,
            ..FLASH
        },
        reasons: &[
            ("read_ns", "4 KiB random read at queue depth 1: 90 to 110 us"),
            ("write_ns", "disk memory plus the SATA command: 60 us"),
            ("read_page_ns", "530 MB/s, the SATA 3 link"),
            ("write_page_ns", "490 MB/s; the link carries one way at a time"),
            ("channel_page_ns", "the link is slower than the flash channels"),
            ("channels", "95,000 random reads/s are about 10 at 100 us; the queue holds 32"),
            ("cpu_ns", "AHCI registers and one interrupt per command"),
            ("jitter_bp", "as NVMe"),
        ],
    },
    Preset {
        name: "virtio",
        what: "virtio block device of a guest on an NVMe disk",
        params: DeviceParams {
            preset: "virtio",
            channels: 16,
            read_ns: 120 * US,
            write_ns: 60 * US,
            read_page_ns: 2_700,
            write_page_ns: 4_000,
            cpu_ns: 8_000,
            jitter_bp: 4_000,
            ..FLASH
        },
        reasons: &[
            ("read_ns", "an NVMe read plus exit, host thread and injected interrupt: 30 to 50 us more"),
            ("write_ns", "the same added to 20 us"),
            ("read_page_ns", "1.5 GB/s through the host's file"),
            ("write_page_ns", "1 GB/s"),
            ("channel_page_ns", "the NVMe disk's"),
            ("buffer_pages", "the NVMe disk's"),
            ("program_ns", "the NVMe disk's"),
            ("channels", "one queue and one host thread keep about 16 in flight"),
            ("cpu_ns", "a doorbell exit and an injected interrupt cost the guest about 4 us each"),
            ("jitter_bp", "the host's scheduler adds to the disk's own spread"),
        ],
    },
    Preset {
        name: "disk",
        what: "7,200 rpm rotational disk",
        params: DeviceParams {
            preset: "disk",
            mechanism: Mechanism::Rotational,
            channels: 1,
            read_ns: 100 * US,
            write_ns: 100 * US,
            read_page_ns: 34 * US,
            write_page_ns: 34 * US,
            channel_page_ns: 0,
            buffer_pages: 0,
            program_ns: 0,
            erase_share_bp: 0,
            erase_ns: 0,
            cpu_ns: 4_000,
            jitter_bp: 0,
            seek_ns: (MS, 15 * MS),
            turn_ns: 8_333 * US,
            disk_pages: 125_000_000,
        },
        reasons: &[
            ("read_ns", "command overhead"),
            ("write_ns", "command overhead"),
            ("read_page_ns", "120 MB/s at the middle tracks"),
            ("write_page_ns", "the same head writes"),
            ("channels", "one arm"),
            ("cpu_ns", "AHCI, as SATA flash"),
            ("jitter_bp", "the spread is in seek and rotation"),
            ("seek_ns", "track to track 1 ms, full stroke 15 ms, mean of random pairs 8.5 ms with a square root law"),
            ("turn_ns", "7,200 rpm"),
            ("disk_pages", "500 GB"),
        ],
    },
    Preset {
        name: "zram",
        what: "compressed memory, in the calling CPU",
        params: DeviceParams {
            preset: "zram",
            mechanism: Mechanism::Synchronous,
            channels: 1,
            read_ns: 0,
            write_ns: 0,
            read_page_ns: 1_500,
            write_page_ns: 4_000,
            channel_page_ns: 0,
            buffer_pages: 0,
            program_ns: 0,
            cpu_ns: 300,
            jitter_bp: 0,
            ..FLASH
        },
        reasons: &[
            ("read_page_ns", "lz4 decompression of 4 KiB: about 2.7 GB/s"),
            ("write_page_ns", "lzo-rle or lz4 compression of 4 KiB: about 1 GB/s"),
            ("cpu_ns", "call and bookkeeping"),
        ],
    },
    Preset {
        name: "remote",
        what: "memory of another host by RDMA",
        params: DeviceParams {
            preset: "remote",
            channels: 64,
            read_ns: 5 * US,
            write_ns: 5 * US,
            read_page_ns: 350,
            write_page_ns: 350,
            channel_page_ns: 0,
            buffer_pages: 0,
            program_ns: 0,
            cpu_ns: 1_000,
            jitter_bp: 2_000,
            ..FLASH
        },
        reasons: &[
            ("read_ns", "one-sided 4 KiB read in one rack: 4 to 6 us"),
            ("write_ns", "the same"),
            ("read_page_ns", "100 Gbit/s; one engine of the adapter serves both ways"),
            ("write_page_ns", "100 Gbit/s"),
            ("channels", "outstanding reads of a few queue pairs"),
            ("cpu_ns", "post and poll"),
            ("jitter_bp", "switch queues"),
        ],
    },
];

/// The preset of that name.
pub fn preset(name: &str) -> Option<&'static Preset> {
    PRESETS.iter().find(|p| p.name == name)
}

/// All names.
pub fn names() -> impl Iterator<Item = &'static str> {
    PRESETS.iter().map(|p| p.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_of_a_preset_has_its_reason() {
        for preset in &PRESETS {
            assert_eq!(preset.name, preset.params.preset);
            let has = |key: &str| preset.reasons.iter().any(|(k, why)| *k == key && !why.is_empty());
            assert!(has("read_page_ns") && has("write_page_ns") && has("cpu_ns"), "{}", preset.name);
            assert!(preset.params.read_ns == 0 || has("read_ns"), "{}", preset.name);
            assert!(preset.params.channel_page_ns == 0 || has("channel_page_ns"), "{}", preset.name);
            assert!(preset.params.buffer_pages == 0 || (has("buffer_pages") && has("program_ns")), "{}", preset.name);
            assert!(preset.params.erase_share_bp == 0 || has("erase_ns"), "{}", preset.name);
            assert!(preset.params.turn_ns == 0 || (has("turn_ns") && has("seek_ns")), "{}", preset.name);
        }
    }
}
