//! How the processes of a job meet: on an abstract Unix socket whose name comes from the job. Nothing of it is in the file
//! system, and the kernel tells both ends the other's user.

use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::family::Family;
use super::office::{Office, Process};
use super::segment::Segment;
use super::shared_memory::{Extent, SharedMemory};
use super::wire;
use crate::error::{Error, ErrorKind, Result, bail, error};
use crate::rank::{Rank, list_ranks};

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
const PROTOCOL_VERSION: u32 = 1;

/// How long a connection may take to say hello.
const HELLO_TIMEOUT: Duration = Duration::from_secs(2);

/// The most connections that say hello at the same time; others wait in the kernel.
const PENDING_HELLOS: usize = 64;

/// How often a process looks whether the hub is there.
const CONNECT_INTERVAL: Duration = Duration::from_millis(5);

/// The hub's answer: a refusal, who has not come, or who is there. With the last comes the memory.
#[derive(Serialize, Deserialize)]
enum Answer {
    Refused(String),
    Incomplete(String),
    Welcome { processes: Vec<Process>, own: u32, memory_len: u64 },
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
    let uid = rustix::process::getuid().as_raw();
    let hash: String = job_digest(job)[..16].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("distcollective-{uid}-{hash}")
}

/// Meets the other processes of the job. The process of rank 0 is the hub.
pub(super) fn meet(guest: &Guest<'_>) -> Result<(Arc<Segment>, Office)> {
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
    if guest.first_rank == 0 { host(guest).map_err(about) } else { visit(guest).map_err(about) }
}

/// A process that has said hello.
struct Visitor {
    stream: UnixStream,
    process: Process,
}

fn host(guest: &Guest<'_>) -> Result<(Arc<Segment>, Office)> {
    let refused = |e: std::io::Error| match e.kind() {
        std::io::ErrorKind::AddrInUse => {
            error!(System, "another rank 0 of this user waits or runs under the same job name").with_source(e)
        }
        _ => error!(System, "no socket to meet on").with_source(e),
    };
    let address = SocketAddr::from_abstract_name(socket_name(guest.job)).map_err(refused)?;
    let listener = UnixListener::bind_addr(&address).map_err(refused)?;
    let mut visitors = gather(guest, &listener)?;
    // From here on latecomers are refused by the kernel.
    drop(listener);
    visitors.sort_by_key(|visitor| visitor.process.first_rank);

    let own = Process {
        pid: rustix::process::getpid().as_raw_nonzero().get(),
        first_rank: guest.first_rank,
        rank_count: guest.rank_count,
    };
    let processes: Vec<Process> = std::iter::once(own).chain(visitors.iter().map(|v| v.process)).collect();
    let spans_processes = processes.len() > 1;
    let extent = root_extent(guest.world_size, spans_processes);
    let memory_len = extent.byte_len;
    if !spans_processes {
        let memory = SharedMemory::of_process(memory_len)?;
        return open_office(guest, memory, processes, 0, vec![None]);
    }
    let (memory, file) = SharedMemory::of_processes(extent, &|| super::in_time(guest.deadline))?;
    for (number, visitor) in visitors.iter().enumerate() {
        let answer =
            Answer::Welcome { processes: processes.clone(), own: number as u32 + 1, memory_len: memory_len as u64 };
        send_answer(&visitor.stream, &answer, Some(&file))
            .map_err(|e| error!(PeerLost, "{} left during the meeting", ranks_of(&visitor.process)).with_source(e))?;
    }
    let links = std::iter::once(None).chain(visitors.into_iter().map(|visitor| Some(visitor.stream))).collect();
    open_office(guest, memory, processes, 0, links)
}

fn ranks_of(process: &Process) -> String {
    list_ranks(process.ranks())
}

fn root_extent(world_size: u32, spans_processes: bool) -> Extent {
    Segment::extent(Family::byte_len(world_size), world_size as usize, spans_processes)
}

fn open_office(
    guest: &Guest<'_>,
    memory: SharedMemory,
    processes: Vec<Process>,
    own: usize,
    links: Vec<Option<UnixStream>>,
) -> Result<(Arc<Segment>, Office)> {
    let memory = Arc::new(memory);
    let world_size = guest.world_size;
    let local_ranks = guest.first_rank..guest.first_rank + guest.rank_count;
    let family = Arc::new(Family::new(Arc::clone(&memory), world_size, local_ranks));
    let members = (0..world_size).map(Rank).collect();
    let offset = Family::byte_len(world_size);
    let root = Arc::new(Segment::new(family, 0, members, memory, offset, processes.len() > 1));
    // In another namespace the numbers mean other processes, or none.
    let numbers_are_ours = processes[own].pid == rustix::process::getpid().as_raw_nonzero().get();
    let office = Office::between(processes, own, links, numbers_are_ours, &root)?;
    Ok((root, office))
}

/// Accepts connections until every rank is there. Each says hello on a thread of its own, so that a slow one holds nobody up;
/// whoever hangs up afterwards makes room for another.
fn gather(guest: &Guest<'_>, listener: &UnixListener) -> Result<Vec<Visitor>> {
    let io = |e: std::io::Error| error!(System, "the socket to meet on failed").with_source(e);
    listener.set_nonblocking(true).map_err(io)?;
    let (sender, hellos) = channel();
    let mut visitors: Vec<Visitor> = Vec::new();
    let mut pending = 0;
    let wanted = Hello::of(guest);
    loop {
        forget_the_gone(&mut visitors);
        let missing: Vec<u32> = (0..guest.world_size).filter(|r| !is_present(guest, &visitors, *r)).collect();
        if missing.is_empty() {
            return Ok(visitors);
        }
        let now = Instant::now();
        if now >= guest.deadline {
            let reason = format!("{} of {} did not come before the deadline", list_ranks(missing), guest.world_size);
            for visitor in &visitors {
                let _ = send_answer(&visitor.stream, &Answer::Incomplete(reason.clone()), None);
            }
            bail!(DeadlineExceeded, "{reason}");
        }
        // Wake often enough to look at the hellos, which come over a channel.
        const LOOK: rustix::time::Timespec = rustix::time::Timespec { tv_sec: 0, tv_nsec: 5_000_000 };
        let _ = poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&LOOK));
        while pending < PENDING_HELLOS {
            let Ok((stream, _)) = listener.accept() else { break };
            match wire::peer(&stream) {
                Ok((pid, uid)) if uid == rustix::process::getuid().as_raw() => {
                    let sender = sender.clone();
                    let hello = std::thread::Builder::new().spawn(move || {
                        // The meeting may be over when the hello comes.
                        let _ = sender.send(read_hello(stream).map(|(stream, hello)| (stream, hello, pid)));
                    });
                    // Without a thread the visitor is sent away, and comes again.
                    pending += usize::from(hello.is_ok());
                }
                _ => tracing::warn!("a stranger came to the meeting and was sent away"),
            }
        }
        while let Ok(hello) = hellos.try_recv() {
            pending -= 1;
            let Some((stream, hello, pid)) = hello else { continue };
            forget_the_gone(&mut visitors);
            match refusal(&wanted, &hello, |rank| is_present(guest, &visitors, rank)) {
                None => visitors.push(Visitor {
                    stream,
                    process: Process { pid, first_rank: hello.first_rank, rank_count: hello.rank_count },
                }),
                Some(reason) => {
                    tracing::warn!("a process was refused: {reason}");
                    let _ = send_answer(&stream, &Answer::Refused(reason), None);
                }
            }
        }
    }
}

fn is_present(guest: &Guest<'_>, visitors: &[Visitor], rank: u32) -> bool {
    let own = guest.first_rank..guest.first_rank + guest.rank_count;
    own.contains(&rank) || visitors.iter().any(|visitor| visitor.process.has(Rank(rank)))
}

/// Forgets those who have hung up. Visitors have nothing to say until they are welcomed; so one who is heard of has.
fn forget_the_gone(visitors: &mut Vec<Visitor>) {
    let mut fds: Vec<_> = visitors.iter().map(|visitor| PollFd::new(&visitor.stream, PollFlags::IN)).collect();
    let _ = poll(&mut fds, Some(&Default::default()));
    let gone: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
    let mut gone = gone.into_iter();
    visitors.retain(|visitor| {
        let stays = gone.next() != Some(true);
        if !stays {
            tracing::warn!("{} left before the meeting was complete", ranks_of(&visitor.process));
        }
        stays
    });
}

/// Why a process cannot take part.
fn refusal(wanted: &Hello, hello: &Hello, is_present: impl Fn(u32) -> bool) -> Option<String> {
    if (hello.version, hello.job) != (wanted.version, wanted.job) {
        return Some("it speaks another version, or means another job".to_owned());
    }
    if hello.world_size != wanted.world_size {
        return Some(format!("it expects {} ranks, and rank 0 expects {}", hello.world_size, wanted.world_size));
    }
    let end =
        hello.first_rank.checked_add(hello.rank_count).filter(|&end| end <= hello.world_size && hello.rank_count > 0);
    let Some(end) = end else {
        return Some(format!("{} ranks from {} do not fit", hello.rank_count, hello.first_rank));
    };
    let taken: Vec<u32> = (hello.first_rank..end).filter(|rank| is_present(*rank)).collect();
    if taken.is_empty() {
        return None;
    }
    let verb = if taken.len() == 1 { "is" } else { "are" };
    Some(format!("{} {verb} there already", list_ranks(taken)))
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

fn visit(guest: &Guest<'_>) -> Result<(Arc<Segment>, Office)> {
    let mut stream = connect(guest, guest.deadline)?;
    loop {
        match say_hello(guest, &stream) {
            // A visitor that was stopped for a while has been sent away, and comes again; a hub that has gone is not there.
            Err(error) if error.kind() == ErrorKind::PeerLost => {
                stream = connect(guest, Instant::now()).map_err(|_| error)?;
            }
            Err(error) => return Err(error),
            Ok((memory, processes, own)) => {
                let links = std::iter::once(Some(stream)).chain((1..processes.len()).map(|_| None)).collect();
                return open_office(guest, memory, processes, own, links);
            }
        }
    }
}

/// Says who this process is, and waits for the welcome.
fn say_hello(guest: &Guest<'_>, mut stream: &UnixStream) -> Result<(SharedMemory, Vec<Process>, usize)> {
    let lost = |e: std::io::Error| error!(PeerLost, "rank 0 left during the meeting").with_source(e);
    let (_, uid) = wire::peer(stream).map_err(lost)?;
    if uid != rustix::process::getuid().as_raw() {
        bail!(System, "the one who waits under this job's name is another user");
    }
    stream.write_all(&Hello::of(guest).to_bytes()).map_err(lost)?;
    let left = guest.deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
    stream.set_read_timeout(Some(left)).map_err(lost)?;
    let answer = wire::receive(stream).map_err(|e| match e.kind() {
        std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut => {
            error!(DeadlineExceeded, "the other ranks did not come before the deadline").with_source(e)
        }
        _ => lost(e),
    })?;
    match answer.ok_or_else(|| lost(std::io::ErrorKind::UnexpectedEof.into()))? {
        (Answer::Refused(reason), _) => bail!(Disagreement, "rank 0 refuses this process: {reason}"),
        (Answer::Incomplete(reason), _) => bail!(DeadlineExceeded, "{reason}"),
        (Answer::Welcome { processes, own, memory_len }, Some(file)) => {
            let expected = root_extent(guest.world_size, true).byte_len;
            if memory_len != expected as u64 || own as usize >= processes.len() {
                bail!(System, "rank 0 offers {memory_len} bytes of memory, and {expected} are needed");
            }
            Ok((SharedMemory::open(file, expected)?, processes, own as usize))
        }
        (Answer::Welcome { .. }, None) => bail!(System, "rank 0's welcome came without memory"),
    }
}

fn connect(guest: &Guest<'_>, deadline: Instant) -> Result<UnixStream> {
    let name = socket_name(guest.job);
    loop {
        match connect_now(&name) {
            Ok(stream) => return Ok(stream),
            Err(_) if Instant::now() < deadline => std::thread::sleep(CONNECT_INTERVAL),
            Err(e) => {
                let error = error!(DeadlineExceeded, "rank 0 did not come before the deadline");
                return Err(error.with_source(std::io::Error::from(e)));
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
mod tests {
    use super::*;

    fn guest(job: &str, rank: u32) -> Guest<'_> {
        Guest {
            job,
            world_size: 2,
            first_rank: rank,
            rank_count: 1,
            deadline: Instant::now() + Duration::from_secs(10),
        }
    }

    /// Strangers that connect: one writes garbage, one nothing, one a byte at a time, one leaves at once.
    #[test]
    fn strangers_hold_nobody_up() {
        let job = format!("strangers-{}", std::process::id());
        std::thread::scope(|scope| {
            let hub = scope.spawn(|| meet(&guest(&job, 0)).map(drop));
            let connect = || connect(&guest(&job, 1), Instant::now() + Duration::from_secs(10)).expect("a hub");
            let mut garbage = connect();
            garbage.write_all(&[0xff; 4096]).expect("the hub listens");
            let _silent = connect();
            let mut trickle = connect();
            trickle.write_all(&HELLO_MAGIC[..3]).expect("the hub listens");
            drop(connect());
            let visitor = scope.spawn(|| meet(&guest(&job, 1)).map(drop));
            visitor.join().expect("no panic").expect("a meeting");
            hub.join().expect("no panic").expect("a meeting");
        });
    }

    /// A process that says the right thing and dies makes room for the one that is started in its place.
    #[test]
    fn whoever_hangs_up_leaves_no_place_taken() {
        let job = format!("hang-up-{}", std::process::id());
        let guest = |rank| Guest { world_size: 3, ..guest(&job, rank) };
        std::thread::scope(|scope| {
            let hub = scope.spawn(|| meet(&guest(0)).map(drop));
            for _ in 0..3 {
                let mut dying = connect(&guest(1), guest(1).deadline).expect("a hub");
                dying.write_all(&Hello::of(&guest(1)).to_bytes()).expect("the hub listens");
            }
            let visitors = [1, 2].map(|rank| scope.spawn(move || meet(&guest(rank)).map(drop)));
            visitors.into_iter().for_each(|visitor| visitor.join().expect("no panic").expect("a meeting"));
            hub.join().expect("no panic").expect("a meeting");
        });
    }

    /// Only root can be another user; elsewhere there is nothing to try.
    #[test]
    fn another_user_is_sent_away() {
        use rustix::thread::set_thread_res_uid;
        if !rustix::process::getuid().is_root() {
            println!("skipped: only root can be another user");
            return;
        }
        let job = format!("another-user-{}", std::process::id());
        std::thread::scope(|scope| {
            let hub = scope.spawn(|| meet(&guest(&job, 0)).map(drop));
            let (name, hello) = (socket_name(&job), Hello::of(&guest(&job, 1)).to_bytes());
            let stranger = scope.spawn(move || {
                let nobody = rustix::process::Uid::from_raw(65534);
                // Only this thread becomes another user, and only before it connects.
                set_thread_res_uid(nobody, nobody, nobody).expect("root may");
                let end = Instant::now() + Duration::from_secs(5);
                let mut stream = loop {
                    match connect_now(&name) {
                        Err(_) if Instant::now() < end => std::thread::sleep(CONNECT_INTERVAL),
                        stream => break stream.expect("a hub"),
                    }
                };
                stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout");
                // It may be sent away before it has said anything.
                let _ = stream.write_all(&hello);
                let answer = stream.read(&mut [0; 64]);
                assert!(
                    matches!(answer, Ok(0)) || answer.is_err_and(|e| e.kind() == std::io::ErrorKind::ConnectionReset)
                );
            });
            stranger.join().expect("sent away");
            let visitor = scope.spawn(|| meet(&guest(&job, 1)).map(drop));
            visitor.join().expect("no panic").expect("a meeting");
            hub.join().expect("no panic").expect("a meeting");
        });
    }

    #[test]
    fn a_hello_is_read_back_and_garbage_is_not() {
        let hello = Hello::of(&guest("a", 1));
        let bytes = hello.to_bytes();
        assert_eq!(Hello::from_bytes(&bytes).expect("a hello").to_bytes(), bytes);
        assert!(Hello::from_bytes(&[0xff; HELLO_BYTES]).is_none());
    }
}
