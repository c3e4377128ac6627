//! What an agent says to its supervisor by itself.

use pagetide_sys::fd::Fd;
use pagetide_sys::text::Text;
use pagetide_sys::{signal, socket};

use crate::agent::Agent;
use crate::fork::Voice;
use crate::protocol::SAY;

/// Why the runtime cannot go on.
pub(crate) fn die(supervisor: &Fd, text: std::fmt::Arguments<'_>) -> ! {
    say(supervisor, text);
    signal::end()
}

/// A line for the person who started the run.
pub(crate) fn say(supervisor: &Fd, text: std::fmt::Arguments<'_>) {
    let mut packet = Text::<1024>::new();
    packet.push_bytes(SAY);
    let _ = std::fmt::Write::write_fmt(&mut packet, text);
    // If nobody listens any more there is nobody to tell.
    let _ = socket::send(supervisor, packet.as_bytes(), &[], true);
}

/// A line that a thread of the program left, which could not write it.
pub(super) fn say_left(supervisor: &Fd, line: &[u8]) {
    let line = String::from_utf8_lossy(line);
    say(supervisor, format_args!("{}", line.trim_end().trim_start_matches("pagetide: ")));
}

impl Voice for Agent {
    fn tell(&self, word: &[u8]) {
        // If it has ended, so does this process as soon as it looks.
        let _ = socket::send(&self.supervisor, word, &[], true);
    }

    fn say(&self, text: std::fmt::Arguments<'_>) {
        say(&self.supervisor, text);
    }

    fn die(&self, text: std::fmt::Arguments<'_>) -> ! {
        die(&self.supervisor, text)
    }
}
