//! The few messages of Perfetto's trace format that a timeline is made of, by the numbers of the public definition
//! (`protos/perfetto/trace`). What is not here is passed over when a trace is read.

/// A packet: one thing of the trace.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct TracePacket {
    #[prost(message, optional, tag = "6")]
    pub(crate) clock_snapshot: Option<ClockSnapshot>,
    #[prost(uint64, optional, tag = "8")]
    pub(crate) timestamp: Option<u64>,
    #[prost(uint32, optional, tag = "10")]
    pub(crate) sequence: Option<u32>,
    #[prost(message, optional, tag = "11")]
    pub(crate) event: Option<TrackEvent>,
    #[prost(uint32, optional, tag = "13")]
    pub(crate) sequence_flags: Option<u32>,
    #[prost(uint32, optional, tag = "58")]
    pub(crate) clock: Option<u32>,
    #[prost(message, optional, tag = "60")]
    pub(crate) track: Option<TrackDescriptor>,
}

/// How clocks stand to each other.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ClockSnapshot {
    #[prost(message, repeated, tag = "1")]
    pub(crate) clocks: Vec<Clock>,
    #[prost(uint32, optional, tag = "2")]
    pub(crate) primary: Option<u32>,
}

/// A clock at that moment.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Clock {
    #[prost(uint32, optional, tag = "1")]
    pub(crate) clock: Option<u32>,
    #[prost(uint64, optional, tag = "2")]
    pub(crate) timestamp: Option<u64>,
}

/// A line of the picture.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct TrackDescriptor {
    #[prost(uint64, optional, tag = "1")]
    pub(crate) uuid: Option<u64>,
    #[prost(string, optional, tag = "2")]
    pub(crate) name: Option<String>,
    #[prost(message, optional, tag = "3")]
    pub(crate) process: Option<ProcessDescriptor>,
    #[prost(message, optional, tag = "4")]
    pub(crate) thread: Option<ThreadDescriptor>,
    #[prost(uint64, optional, tag = "5")]
    pub(crate) parent_uuid: Option<u64>,
    #[prost(message, optional, tag = "8")]
    pub(crate) counter: Option<CounterDescriptor>,
}

/// Whose lines lie below this one.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ProcessDescriptor {
    #[prost(int32, optional, tag = "1")]
    pub(crate) pid: Option<i32>,
    #[prost(string, repeated, tag = "2")]
    pub(crate) command: Vec<String>,
    #[prost(string, optional, tag = "6")]
    pub(crate) name: Option<String>,
}

/// The line is a thread's.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ThreadDescriptor {
    #[prost(int32, optional, tag = "1")]
    pub(crate) pid: Option<i32>,
    #[prost(int32, optional, tag = "2")]
    pub(crate) tid: Option<i32>,
    #[prost(string, optional, tag = "5")]
    pub(crate) name: Option<String>,
}

/// The line has numbers.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct CounterDescriptor {
    /// [`unit`].
    #[prost(int32, optional, tag = "3")]
    pub(crate) unit: Option<i32>,
}

/// Something on a line.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct TrackEvent {
    /// [`kind`].
    #[prost(int32, optional, tag = "9")]
    pub(crate) kind: Option<i32>,
    #[prost(uint64, optional, tag = "11")]
    pub(crate) track: Option<u64>,
    #[prost(string, optional, tag = "23")]
    pub(crate) name: Option<String>,
    #[prost(int64, optional, tag = "30")]
    pub(crate) value: Option<i64>,
}

/// `TrackEvent.Type`.
pub(crate) mod kind {
    pub(crate) const SLICE_BEGIN: i32 = 1;
    pub(crate) const SLICE_END: i32 = 2;
    pub(crate) const COUNTER: i32 = 4;
}

/// `CounterDescriptor.Unit`.
pub(crate) mod unit {
    pub(crate) const COUNT: i32 = 2;
    pub(crate) const SIZE_BYTES: i32 = 3;
}

/// `BuiltinClock`.
pub(crate) mod clock {
    pub(crate) const REALTIME: u32 = 1;
    pub(crate) const MONOTONIC: u32 = 3;
}

/// Field 1 of the trace, with a length before the bytes: a packet.
pub(crate) const PACKET_TAG: u8 = 0x0a;
