//! How the processes of a job meet: on an abstract Unix socket whose name comes from the job. Nothing of it is in the file
//! system, and the kernel tells both ends the other's user.

use std::io::{Read, Write};
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::memory::SharedMemory;
use super::peer_processes::Process;
use super::system::{caused_by, make_room_for_processes, overflow_user, process_namespace};
use super::wire;
use super::world::World;
use crate::error::{Error, ErrorKind, Result, bail, error};
use crate::rank::Rank;
use crate::util::slow_warning::SlowWarning;
use crate::util::text::{count_of, list_ranks};

/// Who comes to a meeting.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Guest<'a> {
    /// The job's name; whoever gives the same name and is the same user meets.
    pub(crate) job: &'a str,
    pub(crate) world_size: u32,
    /// The ranks of this process.
    pub(crate) first_rank: u32,
    pub(crate) rank_count: u32,
    pub(crate) deadline: Instant,
}

/// The first message of a process: fixed length, so that nobody can make the hub read more.
const HELLO_BYTES: usize = 28;
const HELLO_MAGIC: [u8; 8] = *b"DCLHELLO";
const PROTOCOL_VERSION: u32 = 2;

/// How long a connection may take to say hello.
const HELLO_TIMEOUT: Duration = Duration::from_secs(2);

/// The most connections that say hello at the same time; others wait in the kernel.
const PENDING_HELLOS: usize = 64;

/// How long the hub waits for a descriptor when it has none left for a process that comes.
const DESCRIPTOR_TIMEOUT: Duration = Duration::from_secs(1);

/// How long a hub that ends the bootstrap waits for each hello that is under way, to tell that
/// process too.
const LAST_HELLO_TIMEOUT: Duration = Duration::from_millis(100);

/// How often a process looks whether the hub is there.
const CONNECT_INTERVAL: Duration = Duration::from_millis(5);

/// The hub's answer.
#[derive(Clone, Serialize, Deserialize)]
enum Answer {
    /// This process cannot take part.
    Refused(String),
    /// Ranks have not come before the deadline.
    Incomplete(String),
    /// Another process does not fit, so that this job cannot start.
    Misfit(String),
    /// The hub ends the bootstrap because of an error of its own.
    Failed(String),
    /// All are there. With this comes the memory.
    Welcome {
        processes: Vec<Process>,
        own: u32,
        memory_len: u64,
        /// Which namespace the numbers of the processes are of, where the hub knows it.
        process_namespace: Option<u64>,
    },
}

impl Answer {
    /// What the other processes are told when the bootstrap ends with an error.
    fn of(error: &Error) -> Self {
        match error.kind() {
            ErrorKind::DeadlineExceeded => Answer::Incomplete(error.to_string()),
            ErrorKind::Disagreement => Answer::Misfit(error.to_string()),
            _ => Answer::Failed(error.to_string()),
        }
    }
}

#[derive(Clone, Copy)]
struct Hello {
    version: u32,
    world_size: u32,
    first_rank: u32,
    rank_count: u32,
    job: u32,
}

impl Hello {
    fn of(guest: &Guest<'_>) -> Self {
        let digest = job_digest(guest.job);
        Hello {
            version: PROTOCOL_VERSION,
            world_size: guest.world_size,
            first_rank: guest.first_rank,
            rank_count: guest.rank_count,
            job: u32::from_le_bytes([digest[16], digest[17], digest[18], digest[19]]),
        }
    }

    /// The process's ranks, where they fit its world.
    fn ranks(&self) -> Option<Range<u32>> {
        let end = self.first_rank.checked_add(self.rank_count)?;
        (self.rank_count > 0 && end <= self.world_size).then_some(self.first_rank..end)
    }

    fn to_bytes(self) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        bytes[..8].copy_from_slice(&HELLO_MAGIC);
        let words = [self.version, self.world_size, self.first_rank, self.rank_count, self.job];
        for (to, word) in bytes[8..].chunks_mut(4).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    fn from_bytes(bytes: &[u8; HELLO_BYTES]) -> Option<Self> {
        let (magic, words) = bytes.split_at(8);
        let mut words = words.chunks_exact(4).map(|word| word.try_into().map_or(0, u32::from_le_bytes));
        let mut next = || words.next();
        let hello =
            Hello { version: next()?, world_size: next()?, first_rank: next()?, rank_count: next()?, job: next()? };
        (magic == HELLO_MAGIC).then_some(hello)
    }
}

fn job_digest(job: &str) -> [u8; 32] {
    Sha256::digest(job.as_bytes()).into()
}

/// The name of a job's abstract socket: the user and a hash of the job's name, whose length a socket's name would not take.
fn socket_name(job: &str) -> String {
    let uid = own_user();
    let hash: String = job_digest(job)[..16].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("distcollective-{uid}-{hash}")
}

/// This process's effective user: the one that the kernel tells the other end of a connection.
fn own_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Whether the user at the other end of a connection is this process's. Several users may read as
/// the overflow user.
fn is_same_user(peer: u32, own: u32, overflow: u32) -> bool {
    peer == own && own != overflow
}

/// Checks that a connection's other end is of this process's user. No other user may hold the job's
/// name.
fn check_holder(user: u32) -> Result<()> {
    match is_same_user(user, own_user(), overflow_user()) {
        true => Ok(()),
        false => bail!(System, "another user (uid {user}) holds the name under which this job's processes meet"),
    }
}

/// Meets the other processes of the job. The process of rank 0 is the hub.
pub(super) fn meet(guest: &Guest<'_>) -> Result<World> {
    let last = u64::from(guest.first_rank) + u64::from(guest.rank_count);
    if guest.rank_count == 0 || last > u64::from(guest.world_size) {
        bail!(
            InvalidArgument,
            "a process with {} ranks from {} does not fit a world of {}",
            guest.rank_count,
            guest.first_rank,
            guest.world_size
        );
    }
    let about = |e: Error| e.about(|| format!("job {:?}", guest.job));
    let overflow = overflow_user();
    if guest.rank_count < guest.world_size && own_user() == overflow {
        let error = error!(
            System,
            "this process's user reads as {overflow}, as does each user that its user namespace does not map; so it cannot \
             tell its own user's processes from others"
        );
        return Err(about(error));
    }
    if guest.first_rank == 0 { host(guest).map_err(about) } else { visit(guest).map_err(about) }
}

/// A process that has said hello.
struct Visitor {
    stream: UnixStream,
    process: Process,
}

fn host(guest: &Guest<'_>) -> Result<World> {
    let refused = |e: std::io::Error| match e.kind() {
        std::io::ErrorKind::AddrInUse => name_is_taken(guest, e),
        _ => caused_by(error!(System, "no socket to meet on"), "bind", e),
    };
    let address = SocketAddr::from_abstract_name(socket_name(guest.job)).map_err(refused)?;
    let listener = UnixListener::bind_addr(&address).map_err(refused)?;
    let visitors = gather(guest, &listener)?;
    // From here on latecomers are refused by the kernel.
    drop(listener);
    welcome(guest, visitors)
}

/// The error of a rank 0 whose job's name is taken. A rank 0 that holds it is told of this one.
fn name_is_taken(guest: &Guest<'_>, e: std::io::Error) -> Error {
    let holder = || {
        let stream = connect_now(&socket_name(guest.job)).map_err(std::io::Error::from)?;
        wire::peer(&stream).map(|(_, user)| (stream, user))
    };
    match holder() {
        Ok((mut stream, user)) => {
            if let Err(error) = check_holder(user) {
                return error.with_source(e);
            }
            // It answers at once, if it still waits.
            let _ = stream.write_all(&Hello::of(guest).to_bytes());
            let _ = stream.set_read_timeout(Some(HELLO_TIMEOUT)).and_then(|()| stream.read(&mut [0]));
            caused_by(error!(System, "another rank 0 of this user waits or runs under the same job name"), "bind", e)
        }
        Err(_) => caused_by(error!(System, "the name under which this job's processes meet is taken"), "bind", e),
    }
}

/// Gives the processes that have come the memory.
fn welcome(guest: &Guest<'_>, mut visitors: Vec<Visitor>) -> Result<World> {
    visitors.sort_by_key(|visitor| visitor.process.first_rank);
    let own = Process {
        pid: rustix::process::getpid().as_raw_nonzero().get(),
        first_rank: guest.first_rank,
        rank_count: guest.rank_count,
    };
    let processes: Vec<Process> = std::iter::once(own).chain(visitors.iter().map(|v| v.process)).collect();
    let spans_processes = processes.len() > 1;
    let extent = World::memory_size(guest.world_size, spans_processes);
    if !spans_processes {
        let memory = SharedMemory::for_threads(extent.byte_len)?;
        return World::between_processes(memory, processes, 0, vec![None], true);
    }
    let in_time = || super::memory::check_allocation_deadline(guest.deadline);
    let (memory, file) = SharedMemory::for_processes(extent, &in_time).inspect_err(|e| tell_all(&visitors, e))?;
    let process_namespace = process_namespace();
    for (number, visitor) in visitors.iter().enumerate() {
        let answer = Answer::Welcome {
            processes: processes.clone(),
            own: number as u32 + 1,
            memory_len: extent.byte_len as u64,
            process_namespace,
        };
        send_answer(&visitor.stream, &answer, Some(&file))
            .map_err(|e| caused_by(left_early(&visitor.process), "sendmsg", e))
            .inspect_err(|e| tell_all(&visitors[number + 1..], e))?;
    }
    let links = std::iter::once(None).chain(visitors.into_iter().map(|visitor| Some(visitor.stream))).collect();
    World::between_processes(memory, processes, 0, links, true)
}

fn left_early(process: &Process) -> Error {
    error!(PeerLost, "{} left during the bootstrap", list_ranks(process.ranks()))
}

/// Tells the processes that have come why the bootstrap ends.
fn tell_all(visitors: &[Visitor], error: &Error) {
    let answer = Answer::of(error);
    for visitor in visitors {
        // A process that has ended needs no answer.
        let _ = send_answer(&visitor.stream, &answer, None);
    }
}

/// Accepts connections until every rank is there, or one that comes shows that the job cannot
/// start. An error is told to every process that has come.
fn gather(guest: &Guest<'_>, listener: &UnixListener) -> Result<Vec<Visitor>> {
    let mut gathering = Gathering::new(guest, listener)?;
    match gathering.until_complete() {
        Ok(()) => Ok(gathering.visitors),
        Err(error) => {
            gathering.end(&error);
            Err(error)
        }
    }
}

/// A connection whose hello has been read, and the number of its process.
type Greeted = (UnixStream, Hello, i32);

/// The hub while processes come.
struct Gathering<'a> {
    guest: &'a Guest<'a>,
    listener: &'a UnixListener,
    visitors: Vec<Visitor>,
    /// Each connection says hello on a thread of its own, so that a slow one delays no other. Its
    /// hello, if it is one, comes here.
    sender: Sender<Option<Greeted>>,
    hellos: Receiver<Option<Greeted>>,
    /// How many of these threads there are.
    pending: usize,
    /// Since when there has been no descriptor for a process that comes.
    starved_since: Option<Instant>,
    needed_descriptors: u64,
}

impl<'a> Gathering<'a> {
    fn new(guest: &'a Guest<'a>, listener: &'a UnixListener) -> Result<Self> {
        let refused = |e| caused_by(error!(System, "the socket to meet on failed"), "ioctl(FIONBIO)", e);
        listener.set_nonblocking(true).map_err(refused)?;
        let needed_descriptors = make_room_for_processes((guest.world_size - guest.rank_count) as usize);
        let (sender, hellos) = channel();
        let visitors = Vec::new();
        Ok(Gathering { guest, listener, visitors, sender, hellos, pending: 0, starved_since: None, needed_descriptors })
    }

    fn until_complete(&mut self) -> Result<()> {
        let mut slow = SlowWarning::new();
        loop {
            forget_the_gone(&mut self.visitors);
            let Guest { world_size, deadline, .. } = *self.guest;
            let missing: Vec<u32> = (0..world_size).filter(|rank| !self.is_present(*rank)).collect();
            if missing.is_empty() {
                return Ok(());
            }
            if Instant::now() >= deadline {
                bail!(DeadlineExceeded, "{} of {world_size} did not come before the deadline", list_ranks(missing));
            }
            slow.look(|seconds| {
                let (job, verb) = (self.guest.job, if missing.len() == 1 { "has" } else { "have" });
                format!("job {job:?}: rank 0 has waited for {seconds} s: {} {verb} not come", list_ranks(missing))
            });
            // Often enough for the hellos, which come over a channel.
            const LOOK: Duration = Duration::from_millis(5);
            if self.starved_since.is_some() {
                // The listener is ready all the time.
                std::thread::sleep(LOOK);
            } else {
                let timeout = rustix::time::Timespec { tv_sec: 0, tv_nsec: LOOK.as_nanos() as i64 };
                let _ = poll(&mut [PollFd::new(self.listener, PollFlags::IN)], Some(&timeout));
            }
            self.accept()?;
            while let Ok(hello) = self.hellos.try_recv() {
                self.pending -= 1;
                hello.map_or(Ok(()), |greeted| self.greet(greeted))?;
            }
        }
    }

    /// Takes connections in, and lets each say hello.
    fn accept(&mut self) -> Result<()> {
        while self.pending < PENDING_HELLOS {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(e) if [Errno::MFILE, Errno::NFILE].map(|e| Some(e.raw_os_error())).contains(&e.raw_os_error()) => {
                    // Connections that say nothing go away; so may other files of this program.
                    let since = *self.starved_since.get_or_insert_with(Instant::now);
                    if since.elapsed() < DESCRIPTOR_TIMEOUT {
                        return Ok(());
                    }
                    return Err(self.starved(e));
                }
                Err(_) => {
                    self.starved_since = None;
                    return Ok(());
                }
            };
            self.starved_since = None;
            match wire::peer(&stream) {
                Ok((pid, user)) if is_same_user(user, own_user(), overflow_user()) => {
                    let sender = self.sender.clone();
                    let hello = std::thread::Builder::new().spawn(move || {
                        // The bootstrap may be over when the hello comes.
                        let _ = sender.send(read_hello(stream).map(|(stream, hello)| (stream, hello, pid)));
                    });
                    // Without a thread the connection is closed, and its process comes again.
                    self.pending += usize::from(hello.is_ok());
                }
                _ => crate::util::log::event!(WARN, "another user's process came to the bootstrap and was sent away"),
            }
        }
        Ok(())
    }

    fn starved(&self, e: std::io::Error) -> Error {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        let number = |limit: Option<u64>| limit.map_or("unlimited".to_owned(), |limit| limit.to_string());
        let error = error!(
            System,
            "rank 0's process has no file descriptor left for the processes that come: RLIMIT_NOFILE is {} (hard limit {}), \
             and a world of {} needs about {} there (see `ulimit -n`)",
            number(limit.current),
            number(limit.maximum),
            count_of(self.guest.world_size as usize, "rank"),
            self.needed_descriptors
        );
        caused_by(error, "accept", e)
    }

    /// Takes a process in that has said hello, or refuses it.
    fn greet(&mut self, (stream, hello, pid): Greeted) -> Result<()> {
        // A process that has ended is no obstacle to the one that is started in its place,
        // whichever hello is read first.
        if has_hung_up(&[&stream]) == [true] {
            return Ok(());
        }
        forget_the_gone(&mut self.visitors);
        let (reason, ends_bootstrap) = match assess(&Hello::of(self.guest), &hello, |rank| self.is_present(rank)) {
            Assessment::Fits => {
                let process = Process { pid, first_rank: hello.first_rank, rank_count: hello.rank_count };
                self.visitors.push(Visitor { stream, process });
                return Ok(());
            }
            Assessment::Stranger(reason) => (reason, false),
            Assessment::Misfit(reason) => (reason, true),
        };
        crate::util::log::event!(WARN, "a process was refused: {reason}");
        let _ = send_answer(&stream, &Answer::Refused(reason.clone()), None);
        match ends_bootstrap {
            true => Err(error!(Disagreement, "{} was refused: {reason}", describe(&hello))),
            false => Ok(()),
        }
    }

    /// Tells every process that has come why the bootstrap ends: those that have said hello, those
    /// that are about to, and those whose connections wait in the kernel.
    fn end(&mut self, error: &Error) {
        tell_all(&self.visitors, error);
        let answer = Answer::of(error);
        while self.pending > 0 {
            let Ok(hello) = self.hellos.recv_timeout(LAST_HELLO_TIMEOUT) else { break };
            self.pending -= 1;
            if let Some((stream, _, _)) = hello {
                let _ = send_answer(&stream, &answer, None);
            }
        }
        while let Ok((stream, _)) = self.listener.accept() {
            if wire::peer(&stream).is_ok_and(|(_, user)| is_same_user(user, own_user(), overflow_user())) {
                let _ = send_answer(&stream, &answer, None);
            }
        }
    }

    fn is_present(&self, rank: u32) -> bool {
        let own = self.guest.first_rank..self.guest.first_rank + self.guest.rank_count;
        own.contains(&rank) || self.visitors.iter().any(|visitor| visitor.process.has(Rank(rank)))
    }
}

/// Which processes have ended their connections. After its hello a process says nothing until it is
/// welcomed; so one whose connection has something to read has ended it.
fn has_hung_up(streams: &[&UnixStream]) -> Vec<bool> {
    let mut fds: Vec<_> = streams.iter().map(|stream| PollFd::new(*stream, PollFlags::IN)).collect();
    let _ = poll(&mut fds, Some(&Default::default()));
    fds.iter().map(|fd| !fd.revents().is_empty()).collect()
}

/// Forgets the processes that have ended their connections.
fn forget_the_gone(visitors: &mut Vec<Visitor>) {
    let mut gone = has_hung_up(&visitors.iter().map(|visitor| &visitor.stream).collect::<Vec<_>>()).into_iter();
    visitors.retain(|visitor| {
        let stays = gone.next() != Some(true);
        if !stays {
            crate::util::log::event!(WARN, "{}", left_early(&visitor.process));
        }
        stays
    });
}

/// What the hub makes of a hello.
enum Assessment {
    Fits,
    /// It is of another job, or of another version of this library. It is sent away, and the
    /// bootstrap goes on.
    Stranger(String),
    /// It is of this job, and does not fit it. So the job cannot start.
    Misfit(String),
}

fn assess(wanted: &Hello, hello: &Hello, is_present: impl Fn(u32) -> bool) -> Assessment {
    if (hello.version, hello.job) != (wanted.version, wanted.job) {
        return Assessment::Stranger("it speaks another version, or means another job".to_owned());
    }
    if hello.world_size != wanted.world_size {
        let reason = format!("it expects {} ranks, and rank 0 expects {}", hello.world_size, wanted.world_size);
        return Assessment::Misfit(reason);
    }
    let Some(ranks) = hello.ranks() else {
        return Assessment::Misfit(format!("{} ranks from {} do not fit", hello.rank_count, hello.first_rank));
    };
    let taken: Vec<u32> = ranks.filter(|rank| is_present(*rank)).collect();
    if taken.is_empty() {
        return Assessment::Fits;
    }
    let verb = if taken.len() == 1 { "is" } else { "are" };
    Assessment::Misfit(format!("{} {verb} there already", list_ranks(taken)))
}

/// The process that said a hello.
fn describe(hello: &Hello) -> String {
    match hello.ranks() {
        Some(ranks) => format!("a process with {}", list_ranks(ranks)),
        None => "a process".to_owned(),
    }
}

fn read_hello(mut stream: UnixStream) -> Option<(UnixStream, Hello)> {
    // The timeout is for all bytes together, so that a trickle cannot stretch it.
    let end = Instant::now() + HELLO_TIMEOUT;
    let mut bytes = [0; HELLO_BYTES];
    let mut filled = 0;
    while filled < HELLO_BYTES {
        let left = end.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())?;
        stream.set_read_timeout(Some(left)).ok()?;
        match stream.read(&mut bytes[filled..]) {
            Ok(0) | Err(_) => return None,
            Ok(count) => filled += count,
        }
    }
    Some((stream, Hello::from_bytes(&bytes)?))
}

fn send_answer(stream: &UnixStream, answer: &Answer, memory: Option<&OwnedFd>) -> std::io::Result<()> {
    stream.set_write_timeout(Some(HELLO_TIMEOUT))?;
    wire::send(stream, answer, memory.map(AsFd::as_fd))
}

fn visit(guest: &Guest<'_>) -> Result<World> {
    let mut stream = connect(guest, guest.deadline)?;
    loop {
        match say_hello(guest, &stream) {
            // A visitor that was stopped for a while has been sent away, and comes again; a hub that has gone is not there.
            Err(error) if error.kind() == ErrorKind::PeerLost => {
                stream = connect(guest, Instant::now()).map_err(|_| error)?;
            }
            Err(error) => return Err(error),
            Ok(welcomed) => {
                let Welcomed { memory, processes, own, numbers_are_ours } = welcomed;
                let links = std::iter::once(Some(stream)).chain((1..processes.len()).map(|_| None)).collect();
                return World::between_processes(memory, processes, own, links, numbers_are_ours);
            }
        }
    }
}

/// What a process learns when all are there.
struct Welcomed {
    memory: SharedMemory,
    processes: Vec<Process>,
    own: usize,
    /// Whether the numbers of the processes are those of this process's namespace.
    numbers_are_ours: bool,
}

/// Says who this process is, and waits for the welcome.
fn say_hello(guest: &Guest<'_>, mut stream: &UnixStream) -> Result<Welcomed> {
    let lost = || error!(PeerLost, "rank 0 left during the bootstrap");
    let (_, user) = wire::peer(stream).map_err(|e| caused_by(lost(), "getsockopt(SO_PEERCRED)", e))?;
    check_holder(user)?;
    // A hub that ends the bootstrap answers without reading this.
    let said = stream.write_all(&Hello::of(guest).to_bytes());
    wait_for_answer(guest, stream);
    let left = guest.deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
    stream.set_read_timeout(Some(left)).map_err(|e| caused_by(lost(), "setsockopt(SO_RCVTIMEO)", e))?;
    let answer = wire::receive(stream).map_err(|e| match e.kind() {
        std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut => {
            error!(DeadlineExceeded, "the other ranks did not come before the deadline").with_source(e)
        }
        _ => caused_by(lost(), "recvmsg", e),
    })?;
    let Some((answer, file)) = answer else {
        return Err(said.map_or_else(|e| caused_by(lost(), "write", e), |()| lost()));
    };
    let (processes, own, memory_len, namespace) = match answer {
        Answer::Refused(reason) => bail!(Disagreement, "rank 0 refuses this process: {reason}"),
        Answer::Incomplete(reason) => bail!(DeadlineExceeded, "{reason}"),
        Answer::Misfit(reason) => bail!(Disagreement, "{reason}"),
        Answer::Failed(reason) => bail!(Aborted, "rank 0 ended the bootstrap: {reason}"),
        Answer::Welcome { processes, own, memory_len, process_namespace } => {
            (processes, own as usize, memory_len, process_namespace)
        }
    };
    let Some(file) = file else {
        bail!(System, "rank 0's welcome came without memory; perhaps this process has no file descriptor left")
    };
    let expected = World::memory_size(guest.world_size, true).byte_len;
    if memory_len != expected as u64 {
        bail!(System, "rank 0 offers {memory_len} bytes of memory, and {expected} are needed");
    }
    check_processes(guest, &processes, own)?;
    let memory = SharedMemory::open(file, expected)?;
    let numbers_are_ours = namespace.is_some() && namespace == process_namespace();
    Ok(Welcomed { memory, processes, own, numbers_are_ours })
}

/// Waits until the hub has answered, or the deadline is over; a long wait is logged.
fn wait_for_answer(guest: &Guest<'_>, stream: &UnixStream) {
    let mut slow = SlowWarning::new();
    while Instant::now() < guest.deadline {
        let left = slow.next_look(guest.deadline).saturating_duration_since(Instant::now());
        let timeout = rustix::time::Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        };
        if poll(&mut [PollFd::new(stream, PollFlags::IN)], Some(&timeout)).is_ok_and(|ready| ready > 0) {
            return;
        }
        let Guest { job, first_rank, .. } = *guest;
        slow.look(|seconds| {
            format!("job {job:?}: rank {first_rank} has waited for {seconds} s: not all ranks have come")
        });
    }
}

/// Checks the hub's list of processes: it has each rank once, in order, and this process where it
/// says.
fn check_processes(guest: &Guest<'_>, processes: &[Process], own: usize) -> Result<()> {
    let ends = processes.iter().try_fold(0u32, |next, process| {
        let fits = process.first_rank == next && process.rank_count > 0;
        next.checked_add(process.rank_count).filter(|_| fits)
    });
    let is_own = |process: &Process| (process.first_rank, process.rank_count) == (guest.first_rank, guest.rank_count);
    if ends != Some(guest.world_size) || own == 0 || !processes.get(own).is_some_and(is_own) {
        bail!(System, "rank 0's list of processes does not have each rank of {} once", guest.world_size);
    }
    Ok(())
}

/// What may be the matter where rank 0 does not come.
const NAMESPACES: &str = ". Ranks in different network namespaces (containers) cannot meet over abstract sockets";

fn connect(guest: &Guest<'_>, deadline: Instant) -> Result<UnixStream> {
    let name = socket_name(guest.job);
    let mut slow = SlowWarning::new();
    loop {
        match connect_now(&name) {
            Ok(stream) => return Ok(stream),
            Err(_) if Instant::now() < deadline => {
                let Guest { job, first_rank, .. } = *guest;
                slow.look(|seconds| {
                    format!(
                        "job {job:?}: rank {first_rank} has waited for {seconds} s: rank 0 has not come{NAMESPACES}"
                    )
                });
                std::thread::sleep(CONNECT_INTERVAL);
            }
            Err(e) => {
                let error =
                    caused_by(error!(DeadlineExceeded, "rank 0 did not come before the deadline"), "connect", e);
                return Err(error.followed_by(NAMESPACES));
            }
        }
    }
}

/// Connects without waiting for a place in the queue, since a hub that is stopped would never give one.
fn connect_now(name: &str) -> rustix::io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
    rustix::io::ioctl_fionbio(&socket, false)?;
    Ok(UnixStream::from(socket))
}

#[cfg(test)]
mod tests;
