//! Where metrics go: a file that is replaced in one step, or whoever asks over HTTP, at an address of this machine.
//!
//! The run never waits for a reader: it leaves the newest text, and a thread of its own answers up to [`READERS`] at a time, each within
//! [`READER_S`]; none of them waits for another. What a reader sends may be anything; some [`REQUEST_BYTES`] of it are looked at.

use std::collections::VecDeque;
use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use pagetide_sys::fd::{self, PollFd, events};
use pagetide_sys::{clock, stderr};

use crate::failure::{Exit, Failure};
use crate::whole_file::{PATIENCE_NS, WholeFile};

/// Seconds that a reader has at most.
const READER_S: u64 = 2;
/// Readers at a time; where one more comes, the oldest goes.
const READERS: usize = 64;
/// Until it is tried again to have a descriptor for the first one.
const PAUSE_NS: u64 = 100_000_000;
/// Bytes of a request at most.
const REQUEST_BYTES: usize = 8 << 10;
const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// `--metrics`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// A file.
    File(PathBuf),
    /// HTTP at an address.
    Address(SocketAddr),
    /// HTTP at a unix socket.
    Socket(PathBuf),
}

/// Reads `FILE`, `unix:PATH`, `ADDRESS:PORT`, `localhost:PORT` or `:PORT`.
pub(crate) fn parse_target(text: &str) -> Result<Target, String> {
    if let Some(path) = text.strip_prefix("unix:") {
        return if path.is_empty() { Err("unix: names no path".to_owned()) } else { Ok(Target::Socket(path.into())) };
    }
    let port = text.strip_prefix("localhost:").or_else(|| text.strip_prefix(':'));
    let address = port.map_or_else(|| text.to_owned(), |port| format!("127.0.0.1:{port}"));
    match address.parse() {
        Ok(address) => Ok(Target::Address(address)),
        Err(_) if text.is_empty() || port.is_some() => {
            Err("give a FILE, an ADDRESS:PORT with a port from 0 to 65535, or unix:PATH".to_owned())
        }
        Err(_) if is_host_and_port(text) => {
            Err("write the host as an address, such as 127.0.0.1; a file of this name is ./NAME".to_owned())
        }
        Err(_) => Ok(Target::File(text.into())),
    }
}

/// Nobody means a file by that.
fn is_host_and_port(text: &str) -> bool {
    let is_port = |port: &str| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    !text.contains('/') && text.rsplit_once(':').is_some_and(|(_, port)| is_port(port))
}

/// A listener of either kind.
#[derive(Debug)]
enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// Where the texts go.
#[derive(Debug)]
pub(crate) enum Sink {
    /// A file; true once its user was told that it cannot be written.
    File(WholeFile, bool),
    /// Readers of the newest text.
    Served(Served),
}

/// What is served.
#[derive(Debug)]
pub(crate) struct Served {
    newest: Arc<Mutex<Arc<str>>>,
    /// Until the thread takes it.
    listener: Option<Listener>,
    /// Removed at the end.
    socket: Option<PathBuf>,
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Some(socket) = &self.socket {
            let _ = fs::remove_file(socket);
        }
    }
}

impl Sink {
    /// Before the program starts, so that what cannot be is an error. `is_exposed`: other machines may read.
    pub(crate) fn open(target: &Target, is_exposed: bool) -> Result<Self, Failure> {
        let (listener, socket) = match target {
            Target::File(path) => {
                return Ok(Self::File(WholeFile::open("--metrics", path, Some(PATIENCE_NS))?, false));
            }
            Target::Address(address) if !address.ip().is_loopback() && !is_exposed => {
                return Err(Failure::told(
                    Exit::Usage,
                    format!("--metrics {address}: other machines could read what this run does"),
                    "use 127.0.0.1 or unix:PATH, or say --metrics-exposed",
                ));
            }
            Target::Address(address) => {
                let refused = |error| refused(&address.to_string(), &error);
                let listener = TcpListener::bind(address).map_err(refused)?;
                if address.port() == 0 {
                    let chosen = listener.local_addr().map_err(refused)?;
                    stderr::tell(format_args!("pagetide: metrics at http://{chosen}/metrics"));
                }
                (Listener::tcp(listener).map_err(refused)?, None)
            }
            Target::Socket(path) => {
                let listener = listen(path)
                    .and_then(Listener::unix)
                    .map_err(|error| refused(&format!("unix:{}", path.display()), &error))?;
                (listener, Some(path.clone()))
            }
        };
        let newest = Arc::new(Mutex::new(Arc::from("# EOF\n")));
        Ok(Self::Served(Served { newest, listener: Some(listener), socket }))
    }

    /// The newest text. Called from the thread of the run: the readers' thread, which it starts, has its signals blocked as well.
    pub(crate) fn put(&mut self, text: String) {
        match self {
            Self::File(file, is_told) => {
                if let Err(error) = file.put(&text)
                    && !std::mem::replace(is_told, true)
                {
                    stderr::tell(format_args!(
                        "pagetide: --metrics {}: cannot write: {error}; the run goes on",
                        file.path().display()
                    ));
                }
            }
            Self::Served(served) => {
                *served.newest.lock().unwrap_or_else(PoisonError::into_inner) = Arc::from(text);
                if let Some(listener) = served.listener.take() {
                    let newest = Arc::clone(&served.newest);
                    let begun =
                        thread::Builder::new().name("metrics".to_owned()).spawn(move || serve(&listener, &newest));
                    if let Err(error) = begun {
                        stderr::tell(format_args!(
                            "pagetide: --metrics: nobody can be answered: {error}; the run goes on"
                        ));
                    }
                }
            }
        }
    }
}

/// For the user alone. A socket that a killed run has left is replaced; one that somebody listens at is not.
fn listen(path: &Path) -> io::Result<UnixListener> {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket());
    let is_dead = || UnixStream::connect(path).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused);
    if is_socket && is_dead() {
        fs::remove_file(path)?;
    }
    let listener = UnixListener::bind(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

fn refused(target: &str, error: &io::Error) -> Failure {
    let remedy = if error.kind() == ErrorKind::AddrInUse {
        "another program listens there: choose another port or path, or :0 for any port"
    } else if error.kind() == ErrorKind::PermissionDenied {
        "ports under 1024 are root's: choose another"
    } else {
        "name an address of this machine, or unix:PATH in a directory that exists"
    };
    Failure::told(Exit::Failed, format!("--metrics {target}: cannot listen: {error}"), remedy)
}

/// A connection of either kind, whose calls do not wait.
trait Connection: Read + Write + AsRawFd {}
impl Connection for TcpStream {}
impl Connection for UnixStream {}

impl Listener {
    /// Nobody waits for a connection that has gone again; so for the other kind.
    fn tcp(listener: TcpListener) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        Ok(Self::Tcp(listener))
    }

    fn unix(listener: UnixListener) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        Ok(Self::Unix(listener))
    }

    fn accept(&self) -> io::Result<Box<dyn Connection>> {
        match self {
            Self::Tcp(listener) => {
                let (reader, _) = listener.accept()?;
                reader.set_nonblocking(true)?;
                Ok(Box::new(reader))
            }
            Self::Unix(listener) => {
                let (reader, _) = listener.accept()?;
                reader.set_nonblocking(true)?;
                Ok(Box::new(reader))
            }
        }
    }

    fn number(&self) -> i32 {
        match self {
            Self::Tcp(listener) => listener.as_raw_fd(),
            Self::Unix(listener) => listener.as_raw_fd(),
        }
    }
}

/// Answer readers, as long as the run lasts. What goes wrong with one is that one's.
fn serve(listener: &Listener, newest: &Mutex<Arc<str>>) {
    let text = || Arc::clone(&newest.lock().unwrap_or_else(PoisonError::into_inner));
    let mut readers: VecDeque<Reader> = VecDeque::with_capacity(READERS);
    loop {
        let waits = readers.iter().map(Reader::waits);
        let mut fds: Vec<PollFd> = [PollFd::numbered(listener.number(), events::IN)].into_iter().chain(waits).collect();
        let first_end = readers.front().map(|reader| reader.end.saturating_sub(clock::now()));
        // An interrupted wait is one that saw nothing.
        let _ = fd::poll(&mut fds, first_end);
        readers.retain_mut(|reader| !reader.serve(&text));
        if fds[0].seen() == 0 {
            continue;
        }
        if readers.len() == READERS {
            readers.pop_front();
        }
        match listener.accept() {
            Ok(connection) => readers.push_back(Reader::begin(connection)),
            // It has gone again.
            Err(error) if [ErrorKind::WouldBlock, ErrorKind::ConnectionAborted].contains(&error.kind()) => {}
            // No descriptor is left: the oldest reader has had one for the longest.
            Err(_) if readers.pop_front().is_some() => {}
            Err(_) => drop(fd::poll(&mut [], Some(PAUSE_NS))),
        }
    }
}

/// Who has one request, and gets one answer, within a time: a reader that sends or takes a byte now and then has no more of it.
struct Reader {
    connection: Box<dyn Connection>,
    end: u64,
    request: Vec<u8>,
    /// What it has not taken yet.
    answer: Vec<u8>,
}

impl Reader {
    fn begin(connection: Box<dyn Connection>) -> Self {
        let end = clock::now() + READER_S * 1_000_000_000;
        Self { connection, end, request: Vec::new(), answer: Vec::new() }
    }

    /// What it is to be ready for.
    fn waits(&self) -> PollFd {
        let events = if self.answer.is_empty() { events::IN } else { events::OUT };
        PollFd::numbered(self.connection.as_raw_fd(), events)
    }

    /// What can be done without waiting. True: it goes.
    fn serve(&mut self, text: &impl Fn() -> Arc<str>) -> bool {
        match self.go_on(text) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => clock::now() >= self.end,
            Err(error) => error.kind() != ErrorKind::Interrupted,
            Ok(()) => true,
        }
    }

    /// Returns once it has its answer, or gets none.
    fn go_on(&mut self, text: &impl Fn() -> Arc<str>) -> io::Result<()> {
        while self.answer.is_empty() {
            let mut bytes = [0; 1 << 10];
            let read = self.connection.read(&mut bytes)?;
            self.request.extend_from_slice(&bytes[..read]);
            if read == 0 || self.request.len() > REQUEST_BYTES {
                return Ok(());
            }
            if self.request.windows(4).any(|bytes| bytes == b"\r\n\r\n") {
                let text = text();
                let (head, body) = respond(&self.request, &text);
                self.answer = [head.as_bytes(), body.as_bytes()].concat();
            }
        }
        while !self.answer.is_empty() {
            match self.connection.write(&self.answer)? {
                0 => return Ok(()),
                written => drop(self.answer.drain(..written)),
            }
        }
        Ok(())
    }
}

/// Head and body of the answer.
fn respond<'a>(request: &[u8], text: &'a str) -> (String, &'a str) {
    let line = request.split(|&byte| byte == b'\r').next().unwrap_or_default();
    let mut words = line.split(|&byte| byte == b' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let path = target.split(|&byte| byte == b'?').next().unwrap_or_default();
    let (status, content_type, body) = match (method, path) {
        (b"GET" | b"HEAD", b"/metrics" | b"/") => ("200 OK", CONTENT_TYPE, text),
        (b"GET" | b"HEAD", _) => ("404 Not Found", "text/plain", "metrics are at /metrics\n"),
        _ => ("405 Method Not Allowed", "text/plain", "GET or HEAD\n"),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    (head, if method == b"HEAD" { "" } else { body })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_addresses_and_sockets_are_told_apart() {
        let address = |text: &str| Target::Address(text.parse().expect("an address"));
        for (text, target) in [
            ("/var/lib/node/job.prom", Target::File("/var/lib/node/job.prom".into())),
            ("job.prom", Target::File("job.prom".into())),
            ("127.0.0.1:9100", address("127.0.0.1:9100")),
            ("[::1]:0", address("[::1]:0")),
            (":9100", address("127.0.0.1:9100")),
            ("localhost:9100", address("127.0.0.1:9100")),
            ("unix:/run/m.sock", Target::Socket("/run/m.sock".into())),
        ] {
            assert_eq!(parse_target(text), Ok(target), "{text}");
        }
        for text in ["", ":99999", "localhost:x", "unix:", "myhost:9100"] {
            assert!(parse_target(text).is_err(), "{text}");
        }
    }

    #[test]
    fn an_address_that_other_machines_reach_is_refused_unless_asked_for() {
        let open = Target::Address("0.0.0.0:0".parse().expect("an address"));
        let Err(Failure::Told(told)) = Sink::open(&open, false) else { panic!("it is open to others") };
        assert!(told.exit == Exit::Usage && told.what.contains("0.0.0.0:0"), "{told}");
        assert!(Sink::open(&open, true).is_ok());
    }

    #[test]
    fn an_address_in_use_is_named() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let target = Target::Address(listener.local_addr().expect("it is bound"));
        let Err(Failure::Told(told)) = Sink::open(&target, false) else { panic!("somebody listens there") };
        assert!(told.what.contains("127.0.0.1:") && told.remedy.contains("another port"), "{told}");
    }

    #[test]
    fn readers_that_send_nothing_hold_nobody_up() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let newest = Arc::new(Mutex::new(Arc::from("# EOF\n")));
        let listener = Listener::tcp(listener).expect("it can be asked without waiting");
        thread::spawn(move || serve(&listener, &newest));
        let connect = || TcpStream::connect(address).expect("it listens");
        let mut idle: Vec<TcpStream> = (0..2 * READERS).map(|_| connect()).collect();
        let mut reader = connect();
        reader.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").expect("it is read");
        let mut answer = String::new();
        reader.read_to_string(&mut answer).expect("it is answered");
        assert!(answer.ends_with("# EOF\n"), "{answer}");
        // It was not for their end that it was answered.
        let last = idle.last_mut().expect("many");
        last.set_nonblocking(true).expect("a socket");
        assert_eq!(last.read(&mut [0]).map_err(|error| error.kind()), Err(ErrorKind::WouldBlock));
    }

    #[test]
    fn only_metrics_are_answered_for() {
        let status = |request: &[u8]| respond(request, "text").0.lines().next().unwrap_or_default().to_owned();
        assert_eq!(status(b"GET /metrics HTTP/1.1\r\n\r\n"), "HTTP/1.1 200 OK");
        assert_eq!(status(b"GET /metrics?x=1 HTTP/1.1\r\n\r\n"), "HTTP/1.1 200 OK");
        assert_eq!(status(b"GET /etc/passwd HTTP/1.1\r\n\r\n"), "HTTP/1.1 404 Not Found");
        assert_eq!(status(b"POST / HTTP/1.1\r\n\r\n"), "HTTP/1.1 405 Method Not Allowed");
        assert_eq!(status(b"\xff\r\n\r\n"), "HTTP/1.1 405 Method Not Allowed");
        assert_eq!(respond(b"HEAD / HTTP/1.1\r\n\r\n", "text").1, "");
    }
}
