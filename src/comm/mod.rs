//! The communicator: the ranks that do collectives together.

mod backend;
mod builder;
mod eager;
mod host;
mod signature;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use builder::CommunicatorBuilder;
pub use eager::Operands;

use crate::collective::{Call, check_buffers};
use crate::data_type::DataType;
use crate::error::{ErrorKind, Result, bail, error};
use crate::memory::Buffer;
use crate::rank::{GroupRank, Rank, count_of};
use crate::shape::Dims;
use backend::{Backend, Request};
pub(crate) use signature::Purpose;
use signature::Signature;

/// One rank's end of a set of ranks that do collectives together.
///
/// # Contract
///
/// - **Collective calls.** [`barrier`](Self::barrier), the collectives, [`split`](Self::split),
///   [`new_group`](Self::new_group), [`allocate`](Self::allocate), [`finalize`](Self::finalize) and
///   [`ExecutionContext::set_communicator`](crate::ExecutionContext::set_communicator) are made by every rank, in the same
///   order, each rank on its own thread. Made one after the other from one thread, the first waits for the second until its
///   deadline.
/// - **Agreement.** Each call carries its number and its signature (operation, reduction, root, type, element count). Where
///   ranks differ, every rank that is in the call gets an [`ErrorKind::Disagreement`] with the calls, and no output is written. A
///   rank that only gives (the root of `broadcast` and `scatter`, the others in `gather` and `reduce`) may have returned by then:
///   it gets the error from its next call. [`finalize`](Self::finalize) is the last one.
///   The number counts every collective of this communicator, those inside `split`, `allocate` and `set_communicator` too.
/// - **Bounded.** Every call returns by its deadline: 600 s, or [`with_timeout`](Self::with_timeout).
/// - **Failure.** After an error the outputs are undefined, no peer touches this rank's memory again, and the communicator is
///   dead: further calls, and calls on everything split from it, return its error at once. What a rank finds wrong in its own
///   arguments is reported before anything happens and leaves the communicator as it was; so do different lists in
///   `new_group`, lengths in `allocate` and plans in `set_communicator`, which every rank learns of.
/// - **Determinism.** On the host, results have the same bits on every rank and in every run.
/// - **Handles.** Clones are the same rank. Calls of one rank from several threads take turns; that they have the same order
///   on every rank is the caller's matter. When the last clone is dropped the rank has left, and peers that wait for it are
///   told at once. Between processes, `split`, `new_group` and `allocate`, of groups too, need the process in which the first
///   communicator's rank 0 lives, until all handles of its ranks are dropped: it passes memory on.
#[derive(Clone)]
pub struct Communicator {
    backend: Arc<dyn Backend>,
    timeout: Duration,
}

/// The time that a collective call waits for other ranks, unless told otherwise.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(600);

impl Communicator {
    /// The ranks of a new communicator that are threads of this process: element `r` is rank `r`, to be moved to its thread.
    ///
    /// ```
    /// use distcollective::{Communicator, ReduceOperation};
    ///
    /// let threads: Vec<_> = Communicator::in_process(3)?
    ///     .into_iter()
    ///     .map(|communicator| {
    ///         std::thread::spawn(move || {
    ///             let mut x = [communicator.rank().0 as f32, 1.0];
    ///             communicator.all_reduce(&mut x, ReduceOperation::Sum).map(|()| x)
    ///         })
    ///     })
    ///     .collect();
    /// for thread in threads {
    ///     assert_eq!(thread.join().unwrap()?, [3.0, 3.0]);
    /// }
    /// # Ok::<(), distcollective::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// A communicator of no rank.
    pub fn in_process(world_size: u32) -> Result<Vec<Self>> {
        if world_size == 0 {
            bail!(InvalidArgument, "a communicator has at least one rank");
        }
        Ok(host::in_process(world_size)?
            .into_iter()
            .map(|backend| Self::new(Arc::new(backend), DEFAULT_TIMEOUT))
            .collect())
    }

    /// A communicator between processes of this machine; see [`CommunicatorBuilder`].
    pub fn builder() -> CommunicatorBuilder {
        CommunicatorBuilder::default()
    }

    fn new(backend: Arc<dyn Backend>, timeout: Duration) -> Self {
        Communicator { backend, timeout }
    }

    /// This rank's number, from 0.
    pub fn rank(&self) -> Rank {
        self.backend.rank()
    }

    /// The number of ranks.
    pub fn world_size(&self) -> u32 {
        self.backend.world_size()
    }

    /// This rank's number in the communicator from which this one, perhaps over several steps, was split. Errors speak of
    /// these numbers, so that a rank has one name everywhere.
    pub fn origin_rank(&self) -> Rank {
        self.origin(self.rank())
    }

    pub(crate) fn origin(&self, rank: Rank) -> Rank {
        self.backend.origin(rank)
    }

    /// The time that each collective call through this handle waits for other ranks.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// The same rank with another timeout: for all calls from now on, or for one, as in
    /// `communicator.with_timeout(short).barrier()`.
    pub fn with_timeout(&self, timeout: Duration) -> Self {
        Communicator { backend: Arc::clone(&self.backend), timeout }
    }

    pub(crate) fn deadline(&self) -> Instant {
        let now = Instant::now();
        const FAR: Duration = Duration::from_secs(60 * 60 * 24 * 365);
        now.checked_add(self.timeout).unwrap_or(now + FAR)
    }

    /// Whether the communicator still works.
    ///
    /// # Errors
    ///
    /// The error that ended it.
    pub fn check(&self) -> Result<()> {
        self.backend.check().map_err(|e| e.on_rank(self.origin_rank()))
    }

    /// Ends the communicator, and everything split from the same origin, for every rank: calls that wait return at once, on
    /// the other ranks with an [`ErrorKind::Aborted`] that names this rank and the reason. Not collective.
    pub fn abort(&self, reason: &str) {
        self.backend.abort(ErrorKind::Aborted, reason);
    }

    /// Waits until every rank has come here. Collective.
    ///
    /// # Errors
    ///
    /// See the contract of [`Communicator`].
    pub fn barrier(&self) -> Result<()> {
        self.agree(Purpose::Barrier)
    }

    /// Says good-bye: waits for every rank, so that one whose last call disagreed with the others' still learns of it, and
    /// drops the handle. Collective.
    ///
    /// # Errors
    ///
    /// See the contract of [`Communicator`].
    pub fn finalize(self) -> Result<()> {
        self.agree(Purpose::Finalize)
    }

    fn agree(&self, purpose: Purpose) -> Result<()> {
        // SAFETY: without elements no buffer is used.
        unsafe { self.backend.run(&Request::barrier(purpose, self.deadline())) }
            .map_err(|e| e.on_rank(self.origin_rank()))
    }

    /// Makes a communicator of the ranks that give the same `color`, ordered by `key` and then by rank, as `MPI_Comm_split`
    /// and `ncclCommSplit` do; a rank without a color takes part in the call and gets none. Collective.
    ///
    /// # Errors
    ///
    /// See the contract of [`Communicator`].
    pub fn split(&self, color: Option<u32>, key: u32) -> Result<Option<Communicator>> {
        let backend = self.backend.split(color, key, self.deadline()).map_err(|e| e.on_rank(self.origin_rank()))?;
        Ok(backend.map(|backend| Self::new(Arc::from(backend), self.timeout)))
    }

    /// Makes a communicator of `ranks`, whose order becomes the order of the new ranks. Every rank of this communicator
    /// gives the same list; one that is not in it gets none. Collective.
    ///
    /// # Errors
    ///
    /// A rank that is named twice or is not in this communicator; and see the contract of [`Communicator`].
    pub fn new_group(&self, ranks: &[Rank]) -> Result<Option<Communicator>> {
        for (i, rank) in ranks.iter().enumerate() {
            if rank.0 >= self.world_size() {
                let ranks = count_of(self.world_size() as usize, "rank");
                bail!(InvalidArgument, "rank {rank} is not in a communicator of {ranks}");
            }
            if ranks[..i].contains(rank) {
                bail!(InvalidArgument, "rank {rank} occurs twice");
            }
        }
        let deadline = self.deadline();
        let list: Vec<u8> = ranks.iter().flat_map(|rank| rank.0.to_le_bytes()).collect();
        let lists = self.exchange(Purpose::Split, &list, deadline).map_err(|e| e.on_rank(self.origin_rank()))?;
        if let Some(other) = lists.iter().position(|other| *other != list) {
            // Every rank has the same lists, and at least two differ, so every rank returns an error.
            let other_ranks = lists[other].chunks(4).map(|rank| rank.try_into().map_or(0, u32::from_le_bytes));
            let error = error!(
                Disagreement,
                "new_group wants the same ranks on every rank: this rank gives {:?}, rank {} gives {:?}",
                ranks.iter().map(|rank| rank.0).collect::<Vec<_>>(),
                self.origin(Rank(other as u32)),
                other_ranks.collect::<Vec<_>>()
            );
            return Err(error.on_rank(self.origin_rank()));
        }
        let group = ranks.contains(&self.rank()).then_some(ranks);
        self.split_into(group, deadline).map_err(|e| e.on_rank(self.origin_rank()))
    }

    /// Makes a communicator of the group that this rank is in, if it is in one; other ranks make those of theirs at the same
    /// time. That it has exactly the group's members is checked: buffers are as long as the group says. Collective.
    pub(crate) fn split_into(&self, group: Option<&[Rank]>, deadline: Instant) -> Result<Option<Communicator>> {
        let place = group.and_then(|group| group.iter().position(|rank| *rank == self.rank()));
        let (Some(group), Some(place)) = (group, place) else {
            self.backend.split(None, 0, deadline)?;
            return Ok(None);
        };
        // The first member's number is a color that no other group has.
        let backend = self.backend.split(group.first().map(|rank| rank.0), place as u32, deadline)?;
        let members = backend.iter().flat_map(|b| (0..b.world_size()).map(|rank| b.origin(Rank(rank))));
        if !members.eq(group.iter().map(|rank| self.origin(*rank))) {
            let error = error!(Disagreement, "ranks that split at the same time wanted different groups");
            self.abort_with(&error);
            return Err(error);
        }
        Ok(backend.map(|backend| Self::new(Arc::from(backend), self.timeout)))
    }

    /// A buffer of zeros in memory that all ranks reach, so that collectives on it need no copy in between. Every rank asks for
    /// the same number of bytes. It serves in the communicators that are split from this one too, and wherever another buffer
    /// does; dropping it gives the memory back, whatever the others do with theirs. Collective.
    ///
    /// # Errors
    ///
    /// Dimensions that are not a shape; ranks that ask for different lengths; and see the contract of [`Communicator`].
    pub fn allocate(&self, data_type: DataType, dims: impl TryInto<Dims, Error: Into<crate::Error>>) -> Result<Buffer> {
        let shape = dims.try_into().map_err(Into::into)?.to_shape()?;
        let buffer = self.allocate_bytes(shape.byte_len(data_type), self.deadline());
        buffer.map_err(|e| e.on_rank(self.origin_rank()))?.reshaped(data_type, shape)
    }

    pub(crate) fn allocate_bytes(&self, byte_len: usize, deadline: Instant) -> Result<Buffer> {
        self.backend.allocate(byte_len, deadline)
    }

    /// Runs a call whose rules of types and shapes have been checked. Alignment and overlap are checked here.
    ///
    /// # Safety
    ///
    /// Until this returns, the buffers that the call uses on this rank are valid for the lengths that the call says, and
    /// used by nobody else.
    pub(crate) unsafe fn run(
        &self,
        purpose: Purpose,
        call: &Call,
        label: Option<&str>,
        input: *const u8,
        output: *mut u8,
        deadline: Instant,
    ) -> Result<()> {
        let request = Request { signature: Signature { purpose, call: *call }, label, input, output, deadline };
        let (rank, world_size) = (GroupRank(self.rank().0), self.world_size() as usize);
        check_buffers(call, rank, world_size, input.addr(), output.addr()).map_err(|e| request.label(e))?;
        // SAFETY: the caller's promise, and the rules just checked.
        unsafe { self.backend.run(&request) }
    }

    /// Gives every rank the bytes of every rank. Collective; the lengths may differ.
    pub(crate) fn exchange(&self, purpose: Purpose, bytes: &[u8], deadline: Instant) -> Result<Vec<Vec<u8>>> {
        let n = self.world_size() as usize;
        let mut lens = vec![0i64; n];
        self.gather_all(purpose, &[bytes.len() as i64], &mut lens, deadline)?;
        let longest = lens.iter().copied().max().unwrap_or(0) as usize;
        let mut padded = bytes.to_vec();
        padded.resize(longest, 0);
        let mut all = vec![0u8; longest * n];
        self.gather_all(purpose, &padded, &mut all, deadline)?;
        if longest == 0 {
            return Ok(vec![Vec::new(); n]);
        }
        Ok(all.chunks(longest).zip(lens).map(|(chunk, len)| chunk[..len as usize].to_vec()).collect())
    }

    fn gather_all<T: crate::Element>(
        &self,
        purpose: Purpose,
        input: &[T],
        output: &mut [T],
        deadline: Instant,
    ) -> Result<()> {
        let collective = crate::collective::Collective::AllGather;
        let call = Call { collective, data_type: T::DATA_TYPE, block_elements: input.len() };
        if output.len() != input.len() * self.world_size() as usize {
            return Err(error!(System, "an exchange with a wrong length"));
        }
        // SAFETY: both slices are as long as the call says, and borrowed during it.
        unsafe { self.run(purpose, &call, None, input.as_ptr().cast(), output.as_mut_ptr().cast(), deadline) }
    }

    /// Ends the communicator because of this rank's own error.
    pub(crate) fn abort_with(&self, error: &crate::Error) {
        self.backend.abort(error.kind(), &error.to_string());
    }
}

impl fmt::Debug for Communicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Communicator(rank {} of {})", self.rank(), self.world_size())
    }
}
