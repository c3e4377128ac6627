//! `pagetide ctl RUN ...`: one order to a run that runs. The run says what it did, or why not.
//!
//! An order is one request: whoever is killed here has given it or not. Only `swapoff` goes on after its answer, in the run; we
//! show how far it is.

use std::path::Path;

use crate::args::{CtlArgs, Order};
use crate::backend::{Answer, Connection, DeviceView, Request, TEXT_BYTES_MAX, WatchError, unwatchable};
use crate::failure::{self, Exit, Failure};
use crate::ps::plain;
use crate::size::Bytes;
use crate::snapshot::state;
use crate::{machine, output};

/// Time between two looks at a place that is being emptied, and looks between two lines about it.
const LOOK_NS: u64 = 20_000_000;
const LOOKS_TOLD: u64 = 50;

/// Gives the order.
pub(crate) fn run(args: &CtlArgs) -> Result<(), Failure> {
    let request = request(&args.order)?;
    let mut connection = Connection::open(&args.run).map_err(|error| unwatchable(&args.run, &error))?;
    let text = match connection.ask(&request).map_err(|error| unwatchable(&args.run, &error))? {
        Answer::Done(text) => text,
        Answer::Refused(text) => {
            let remedy = match args.order {
                Order::Set { .. } => "`pagetide knobs` lists the settings and their values",
                Order::Memory { .. }
                | Order::PageOut { .. }
                | Order::Pause
                | Order::Resume
                | Order::Swapon { .. }
                | Order::Swapoff { .. } => "",
            };
            return Err(Failure::told(Exit::Failed, plain(&format!("{}: {text}", args.run)), remedy));
        }
        Answer::Snapshot(_) | Answer::Regions(_) => return Err(refused(args, "the run answers what was not asked")),
    };
    match (&args.order, &request) {
        (Order::Swapoff { no_wait: false, .. }, Request::SwapOff { path, .. }) => {
            watch_drain(args, &mut connection, path)
        }
        _ => output::print(&format!("{}\n", plain(&text))),
    }
}

fn refused(args: &CtlArgs, text: &str) -> Failure {
    Failure::told(Exit::Failed, plain(&format!("{}: {text}", args.run)), "")
}

fn request(order: &Order) -> Result<Request, Failure> {
    Ok(match order {
        Order::Memory { size } => Request::Memory(size.bytes(machine::required_memory_bytes()?)),
        Order::PageOut { size } => Request::PageOut(size.bytes(machine::required_memory_bytes()?)),
        Order::Pause => Request::Pause,
        Order::Resume => Request::Resume,
        Order::Set { setting: (key, value) } => Request::Set { key: key.clone(), value: value.clone() },
        Order::Swapon { place } => {
            Request::SwapOn { path: path_text(&place.path)?, size_bytes: place.size_bytes, priority: place.priority }
        }
        Order::Swapoff { path, stop: true, .. } => Request::StopSwapOff { path: path_text(path)? },
        Order::Swapoff { path, mode, .. } => Request::SwapOff { path: path_text(path)?, mode: *mode },
    })
}

/// The run may have been started in another directory.
fn path_text(path: &Path) -> Result<String, Failure> {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let text = absolute.to_str().filter(|text| text.len() <= TEXT_BYTES_MAX);
    text.map(str::to_owned).ok_or_else(|| {
        let what = format!("{}: a path has to be UTF-8 of at most {TEXT_BYTES_MAX} bytes here", path.display());
        Failure::told(Exit::Usage, what, "")
    })
}

/// Shows how far a place is being emptied, until it is.
fn watch_drain(args: &CtlArgs, connection: &mut Connection, path: &str) -> Result<(), Failure> {
    let mut looks: u64 = 0;
    let mut look = connection.stat();
    loop {
        let snapshot = match look {
            Ok(snapshot) => snapshot,
            Err(WatchError::Ended) => return output::print("the run has ended\n"),
            Err(error) => return Err(unwatchable(&args.run, &error)),
        };
        let Some(device) = snapshot.devices.iter().find(|device| device.is_at(Path::new(path))) else {
            return output::print(&format!("{}: empty, and forgotten\n", plain(path)));
        };
        if state(device) == "given up" {
            let text = format!(
                "{path}: emptying it was given up: there was no room; {} are left there",
                Bytes(device.used_bytes)
            );
            return Err(refused(args, &text));
        }
        if !matches!(state(device), "draining" | "failed") {
            return Err(refused(args, &format!("{path}: somebody stopped emptying it")));
        }
        if looks.is_multiple_of(LOOKS_TOLD) && looks > 0 {
            failure::say(format_args!("{}", progress(device)));
        }
        looks += 1;
        look = connection.wait(LOOK_NS).and_then(|()| connection.stat());
    }
}

/// Pages left, rate, time left.
fn progress(device: &DeviceView) -> String {
    let (left, rate) = (Bytes(device.used_bytes), Bytes(device.pages_per_s.saturating_mul(4096)));
    let seconds = device.left_ns.div_ceil(1_000_000_000);
    let until = if device.left_ns == 0 { String::new() } else { format!(", {seconds} s left") };
    format!("{} pages ({left}) left, {rate}/s{until}", device.used_bytes / 4096)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_tells_pages_rate_and_time() {
        let device =
            DeviceView { used_bytes: 8 << 20, pages_per_s: 512, left_ns: 3_900_000_000, ..DeviceView::default() };
        assert_eq!(progress(&device), "2048 pages (8 MiB) left, 2 MiB/s, 4 s left");
    }
}
