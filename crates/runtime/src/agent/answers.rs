//! What the supervisor asks of an agent's session while it runs, and what it is answered.

use pagetide_sys::fd::Fd;
use pagetide_sys::socket;

use crate::protocol::{CLOSE, DID, DO};
use crate::session::Session;
use crate::session::command::Command;
use crate::store::SwapFile;

/// A command of the supervisor.
pub(super) fn hear(session: &mut Session, packet: &[u8], file: Option<SwapFile>) {
    let text = packet.strip_prefix(DO).and_then(|text| std::str::from_utf8(text).ok());
    let Some((number, command)) = text.and_then(|text| text.split_once(' ')) else { return };
    if let (Ok(number), Some(command)) = (number.parse(), Command::decode(command)) {
        session.order(number, command, file);
    }
}

/// What became of commands, and the files that are to be closed.
pub(super) fn send(supervisor: &Fd, session: &mut Session) {
    while let Some((number, answer)) = session.next_answer() {
        let mut packet = DID.to_vec();
        packet.extend(format!("{number} {}", answer.encode()).as_bytes());
        // If nobody listens any more there is nobody to tell.
        let _ = socket::send(supervisor, &packet, &[], true);
    }
    while let Some([file, told]) = session.next_file_to_close() {
        // If nobody takes them they are closed here.
        let _ = socket::send(supervisor, CLOSE, &[&file, &told], true);
    }
}
