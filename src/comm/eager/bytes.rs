//! Bytes of lengths that receivers do not know: what torch's object collectives are used for. The
//! lengths travel first, then the bytes, in one turn.

use std::time::Instant;

use crate::collective::{Collective, Purpose, PurposeKind};
use crate::comm::{Communicator, Request};
use crate::error::{Error, Result, bail, error};
use crate::issue_order::Extent;
use crate::memory::{TensorView, TensorViewMut};
use crate::rank::Rank;
use crate::util::text::count_of;

/// The most bytes that one rank gives to another one.
const MOST_BYTES: usize = 1 << 30;

/// The most bytes of all ranks together that travel in one collective, where all ranks have parts
/// of one length.
const ROUND_BYTES: usize = 16 << 20;

const BROADCAST: Purpose = Purpose::new("broadcast_bytes", PurposeKind::Part);
const ALL_GATHER: Purpose = Purpose::new("all_gather_bytes", PurposeKind::Part);
const GATHER: Purpose = Purpose::new("gather_bytes", PurposeKind::Part);
const SCATTER: Purpose = Purpose::new("scatter_bytes", PurposeKind::Part);

/// # Bytes of unknown length
///
/// Receivers do not know how long what they get is: the lengths travel first. Bytes may be empty,
/// and are at most 1 GiB from one rank to another. What they mean is up to the program, such as
/// JSON: they are data and never code.
///
/// ```
/// use distcollective::Communicator;
///
/// let configurations = Communicator::spawn(2, |communicator| {
///     let mut configuration = match communicator.rank().0 {
///         0 => b"{\"layers\": 12}".to_vec(),
///         _ => Vec::new(),
///     };
///     communicator.broadcast_bytes(&mut configuration, 0)?;
///     let name = vec![b'x'; communicator.rank().index() + 1];
///     let names = communicator.all_gather_bytes(&name)?;
///     assert_eq!(names, [b"x".to_vec(), b"xx".to_vec()]);
///     // `Some` on the root, which gives each rank its own again.
///     let names = communicator.gather_bytes(&name, 1)?;
///     assert_eq!(communicator.scatter_bytes(names.as_deref(), 1)?, name);
///     Ok(configuration)
/// })?;
/// assert_eq!(configurations[1], b"{\"layers\": 12}");
/// # Ok::<(), distcollective::Error>(())
/// ```
///
/// These calls block, are collective, and follow the contract of [`Communicator`]. A peer that
/// announces more than 1 GiB, or more than this process has memory for, ends the communicator with
/// an error on every rank. In `gather_bytes`, `all_gather_bytes` and `scatter_bytes` all ranks move
/// as many bytes as the longest one has, in rounds.
impl Communicator {
    /// Replaces `bytes` on every rank by the root's.
    ///
    /// # Errors
    ///
    /// `InvalidArgument`: there is no such root; the root's bytes are more than 1 GiB. All others
    /// are those of [`barrier`](Self::barrier).
    pub fn broadcast_bytes(&self, bytes: &mut Vec<u8>, root: impl Into<Rank>) -> Result<()> {
        let root = root.into();
        let is_root = self.rank() == root;
        let exchange = BytesExchange::new(self, BROADCAST);
        exchange.check_arguments(Some(root), is_root.then_some(bytes.len()))?;
        exchange.in_turn(|| {
            let mut len = [bytes.len() as i64];
            exchange.run(Collective::Broadcast { root }, None, Some((&mut len).into()))?;
            let len = announced(&len)?[0];
            if !is_root {
                bytes.clear();
                reserve(bytes, len)?;
                bytes.resize(len, 0);
            }
            match len {
                0 => Ok(()),
                _ => exchange.run(Collective::Broadcast { root }, None, Some(bytes.into())),
            }
        })
    }

    /// Gives every rank the bytes of every rank, in rank order.
    ///
    /// # Errors
    ///
    /// `InvalidArgument`: the bytes are more than 1 GiB. All others are those of
    /// [`barrier`](Self::barrier).
    pub fn all_gather_bytes(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        let exchange = BytesExchange::new(self, ALL_GATHER);
        exchange.check_arguments(None, Some(bytes.len()))?;
        exchange.in_turn(|| exchange.gather(Collective::AllGather, bytes, true))
    }

    /// Gives the root the bytes of every rank, in rank order, and the other ranks `None`.
    ///
    /// # Errors
    ///
    /// `InvalidArgument`: there is no such root; the bytes are more than 1 GiB. All others are
    /// those of [`barrier`](Self::barrier).
    pub fn gather_bytes(&self, bytes: &[u8], root: impl Into<Rank>) -> Result<Option<Vec<Vec<u8>>>> {
        let root = root.into();
        let is_root = self.rank() == root;
        let exchange = BytesExchange::new(self, GATHER);
        exchange.check_arguments(Some(root), Some(bytes.len()))?;
        let gathered = exchange.in_turn(|| exchange.gather(Collective::Gather { root }, bytes, is_root))?;
        Ok(is_root.then_some(gathered))
    }

    /// Gives each rank its element of the root's list, which has one for each rank. The other ranks
    /// may give `None`, which then names a type: `None::<&[Vec<u8>]>`.
    ///
    /// # Errors
    ///
    /// `InvalidArgument`: there is no such root; the root has no list, or one of another length
    /// than the number of ranks, or an element of more than 1 GiB. All others are those of
    /// [`barrier`](Self::barrier).
    pub fn scatter_bytes<B: AsRef<[u8]>>(&self, list: Option<&[B]>, root: impl Into<Rank>) -> Result<Vec<u8>> {
        let root = root.into();
        let is_root = self.rank() == root;
        let list: Vec<&[u8]> = list.filter(|_| is_root).unwrap_or_default().iter().map(AsRef::as_ref).collect();
        let exchange = BytesExchange::new(self, SCATTER);
        exchange.check_arguments(Some(root), list.iter().map(|bytes| bytes.len()).max())?;
        let n = self.world_size() as usize;
        if is_root && list.len() != n {
            let elements = count_of(list.len(), "element");
            let error =
                error!(InvalidArgument, "the root's list has {elements}; it must have one for each of {n} ranks");
            return Err(exchange.label(error));
        }
        exchange.in_turn(|| exchange.scatter(&list, root))
    }
}

/// One call of this file.
struct BytesExchange<'a> {
    communicator: &'a Communicator,
    purpose: Purpose,
    deadline: Instant,
}

impl<'a> BytesExchange<'a> {
    fn new(communicator: &'a Communicator, purpose: Purpose) -> Self {
        BytesExchange { communicator, purpose, deadline: communicator.deadline() }
    }

    fn label(&self, error: Error) -> Error {
        self.communicator.about(&self.purpose.name(), error)
    }

    /// Checks what this rank's arguments show.
    fn check_arguments(&self, root: Option<Rank>, len: Option<usize>) -> Result<()> {
        let check = || {
            if let Some(root) = root {
                self.communicator.check_rank("root", root)?;
            }
            match len.filter(|len| *len > MOST_BYTES) {
                Some(len) => bail!(InvalidArgument, "{len} bytes are too many; the most are {MOST_BYTES}"),
                None => Ok(()),
            }
        };
        check().map_err(|error| self.label(error))
    }

    /// Makes several collectives, between which no other call of this rank comes. Peers may be in
    /// the next one, so an error of this rank's own ends the communicator.
    fn in_turn<T>(&self, body: impl FnOnce() -> Result<T>) -> Result<T> {
        let run = || body().inspect_err(|error| self.communicator.abort_with(&self.label(error.clone())));
        let name = self.purpose.name();
        self.communicator.in_turn(Extent::Communicator, &name, self.deadline, run).map_err(|error| self.label(error))
    }

    /// One collective on host memory; without an input it is in place.
    fn run(
        &self,
        collective: Collective<Rank>,
        input: Option<TensorView<'_>>,
        mut output: Option<TensorViewMut<'_>>,
    ) -> Result<()> {
        let (communicator, output) = (self.communicator, output.as_mut().map(TensorViewMut::raw));
        let can_use_output = collective.operation().geometry().can_use_one_buffer();
        let input = input.as_ref().map(TensorView::raw).or(output.filter(|_| can_use_output));
        let request = communicator.eager_request(collective, [input, output])?;
        let call = request.call.for_purpose(self.purpose);
        // SAFETY: `eager_request` has compared the lengths of the buffers, which are borrowed.
        unsafe { communicator.run(Request { call, deadline: self.deadline, ..request }) }
    }

    /// Gathers the bytes of all ranks. A rank that receives nothing gets an empty list.
    fn gather(&self, collective: Collective<Rank>, bytes: &[u8], receives: bool) -> Result<Vec<Vec<u8>>> {
        let mut lens = vec![0i64; self.communicator.world_size() as usize];
        self.run(Collective::AllGather, Some((&[bytes.len() as i64]).into()), Some((&mut lens).into()))?;
        let lens = announced(&lens)?;
        self.move_parts(collective, &[bytes], if receives { &lens } else { &[] }, &lens)
    }

    /// Scatters the root's list, which has an element for each rank. On other ranks it is empty.
    fn scatter(&self, list: &[&[u8]], root: Rank) -> Result<Vec<u8>> {
        let mut lens: Vec<i64> = list.iter().map(|bytes| bytes.len() as i64).collect();
        lens.resize(self.communicator.world_size() as usize, 0);
        self.run(Collective::Broadcast { root }, None, Some((&mut lens).into()))?;
        let lens = announced(&lens)?;
        let own_len = lens[self.communicator.rank().index()];
        Ok(self.move_parts(Collective::Scatter { root }, list, &[own_len], &lens)?.remove(0))
    }

    /// Moves parts of unequal lengths in rounds of equal ones: this rank gives `given`, and takes
    /// as many parts as there are `taken_lens`. `lens` has the length of each part that moves.
    fn move_parts(
        &self,
        collective: Collective<Rank>,
        given: &[&[u8]],
        taken_lens: &[usize],
        lens: &[usize],
    ) -> Result<Vec<Vec<u8>>> {
        let mut taken = vec![Vec::new(); taken_lens.len()];
        taken.iter_mut().zip(taken_lens).try_for_each(|(bytes, len)| reserve(bytes, *len))?;
        let longest = lens.iter().copied().max().unwrap_or(0);
        let most = (ROUND_BYTES / self.communicator.world_size() as usize).clamp(1, longest.max(1));
        let (mut input, mut output) = (zeros(most * given.len())?, zeros(most * taken.len())?);
        for start in (0..longest).step_by(most) {
            let piece = most.min(longest - start);
            let (input, output) = (&mut input[..piece * given.len()], &mut output[..piece * taken.len()]);
            for (bytes, block) in given.iter().zip(input.chunks_exact_mut(piece)) {
                let part = &bytes[start.min(bytes.len())..(start + piece).min(bytes.len())];
                block[..part.len()].copy_from_slice(part);
            }
            let own_input = (!given.is_empty()).then(|| TensorView::from(&*input));
            let own_output = (!taken.is_empty()).then(|| TensorViewMut::from(&mut *output));
            self.run(collective, own_input, own_output)?;
            for ((bytes, len), block) in taken.iter_mut().zip(taken_lens).zip(output.chunks_exact(piece)) {
                bytes.extend_from_slice(&block[..piece.min(len - bytes.len())]);
            }
        }
        Ok(taken)
    }
}

/// Lengths that peers announced. Every rank that has them finds the same.
fn announced(lens: &[i64]) -> Result<Vec<usize>> {
    let most = MOST_BYTES as i64;
    if let Some(len) = lens.iter().find(|len| !(0..=most).contains(*len)) {
        bail!(System, "a peer announces {len} bytes; the most are {MOST_BYTES}");
    }
    Ok(lens.iter().map(|len| *len as usize).collect())
}

/// Memory for as many bytes as a peer announced. Without it the program goes on with an error.
fn reserve(bytes: &mut Vec<u8>, len: usize) -> Result<()> {
    bytes.try_reserve_exact(len).map_err(|e| error!(System, "there is no memory for {len} bytes").with_source(e))
}

fn zeros(len: usize) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    reserve(&mut bytes, len)?;
    bytes.resize(len, 0);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::error::ErrorKind;

    /// A peer that does not keep to the limit ends the call of every rank, and no rank allocates
    /// what it announces.
    #[test]
    fn a_hostile_length_is_refused() {
        for len in [-1, i64::MIN, MOST_BYTES as i64 + 1, i64::MAX] {
            let results = Communicator::spawn(2, |communicator| {
                let communicator = communicator.with_timeout(Duration::from_secs(10));
                let root = Rank(1);
                let mut bytes = Vec::new();
                let failed = match communicator.rank() {
                    Rank(0) => communicator.broadcast_bytes(&mut bytes, root),
                    _ => {
                        let exchange = BytesExchange::new(&communicator, BROADCAST);
                        let announce = || exchange.run(Collective::Broadcast { root }, None, Some((&mut [len]).into()));
                        exchange.in_turn(announce).and_then(|()| communicator.barrier())
                    }
                };
                Ok((failed.expect_err("a length over the limit"), bytes.capacity()))
            });
            let text = format!("broadcast_bytes: a peer announces {len} bytes; the most are 1073741824");
            for (error, capacity) in results.expect("every rank returns") {
                assert!(error.to_string().contains(&text), "{error}");
                assert_eq!(capacity, 0);
            }
        }
    }

    #[test]
    fn bytes_over_the_limit_are_an_argument_error() {
        let communicator = Communicator::builder().in_process(1).expect("a rank").remove(0);
        let exchange = BytesExchange::new(&communicator, GATHER);
        assert!(exchange.check_arguments(None, Some(MOST_BYTES)).is_ok());
        let error = exchange.check_arguments(None, Some(MOST_BYTES + 1)).expect_err("one too many");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        let text = "rank 0: gather_bytes: 1073741825 bytes are too many; the most are 1073741824";
        assert_eq!(error.to_string(), text);
    }
}
