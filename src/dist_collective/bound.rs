//! A layer on a communicator: who takes part on this rank, and running it.

use std::num::NonZeroU16;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use super::agreement::{Needs, PlannedCall, agree};
use super::{DistCollectiveLayer, ResolvedLayer};
use crate::collective::{Call, Groups, InPlace, check_buffers};
use crate::comm::{Checked, Communicator, CountedRun, RawCollective, RefusedRun, Request, RunCounter};
use crate::data_type::DataType;
use crate::error::{Error, Result, bail, error};
use crate::issue_order::Extent;
use crate::memory::{Address, RawTensor, TensorView, TensorViewMut};
use crate::rank::{GroupRank, Rank};
use crate::shape::Shape;
use crate::stream::{Stream, Work};
use crate::util::rough_deadline_after;
use crate::util::text::count_of;

/// What one rank does in one layer.
#[derive(Clone, Debug)]
pub(crate) enum Role {
    /// The layer is the identity on this rank.
    Identity,
    /// The rank does not take part.
    Skip,
    /// The rank takes part, on this communicator of exactly the participants.
    Member(Communicator),
}

impl Role {
    /// This rank's number in the group, where it takes part.
    fn group_rank(&self) -> Option<GroupRank> {
        match self {
            Role::Identity => Some(GroupRank(0)),
            Role::Skip => None,
            Role::Member(communicator) => Some(GroupRank(communicator.rank().0)),
        }
    }

    fn group_len(&self) -> usize {
        match self {
            Role::Member(communicator) => communicator.world_size() as usize,
            Role::Identity | Role::Skip => 1,
        }
    }

    pub(crate) fn reads_input(&self, call: &Call) -> bool {
        matches!(self, Role::Identity) || self.group_rank().is_some_and(|rank| call.reads_input(rank))
    }

    pub(crate) fn writes_output(&self, call: &Call) -> bool {
        matches!(self, Role::Identity) || self.group_rank().is_some_and(|rank| call.writes_output(rank))
    }

    /// Checks addresses, alignment and overlap of the buffers that a call uses on this rank.
    pub(crate) fn check_buffers(&self, call: &Call, sides: [Address; 2]) -> Result<()> {
        let call = match self {
            Role::Skip => return Ok(()),
            Role::Identity => &call.of_one_rank(),
            Role::Member(_) => call,
        };
        let rank = self.group_rank().unwrap_or(GroupRank(0));
        check_buffers(call, rank, call.used_bytes(rank, self.group_len()), sides.map(|side| side.addr()))
    }

    /// Checks the buffers of a layer's call, for memory too.
    pub(crate) fn check<'a>(&'a self, request: &'a mut Request<'_>) -> Result<Checked<'a>> {
        match self {
            Role::Member(communicator) => communicator.check_request(request),
            Role::Identity => Checked::alone(request),
            // There is nothing to copy.
            Role::Skip => {
                request.call.block_elements = 0;
                Checked::alone(request)
            }
        }
    }
}

/// The roles of this rank in the layers of one plan. Layers with the same participants share a
/// communicator.
pub(crate) struct Roles<'a> {
    communicator: &'a Communicator,
    deadline: Instant,
    groups: Vec<(Groups, Role)>,
}

impl<'a> Roles<'a> {
    pub(crate) fn new(communicator: &'a Communicator, deadline: Instant) -> Self {
        Roles { communicator, deadline, groups: Vec::new() }
    }

    /// The communicators of this rank's groups, in the order in which it has split them off.
    pub(crate) fn groups(&self) -> impl Iterator<Item = &Communicator> {
        self.groups.iter().filter_map(|(_, role)| match role {
            Role::Member(communicator) => Some(communicator),
            _ => None,
        })
    }

    /// Whether a layer fits the communicator. Not collective.
    pub(crate) fn check(communicator: &Communicator, layer: &ResolvedLayer) -> Result<()> {
        let world_size = communicator.world_size();
        let ranks = count_of(world_size as usize, "rank");
        let result = match layer.groups.largest_rank() {
            Some(Rank(largest)) if largest >= world_size => Err(error!(
                InvalidCommunicator,
                "rank {largest} is not in a communicator of {ranks}; groups is {}", layer.groups
            )),
            Some(_) => Ok(()),
            None if !layer.nb_rank_is_set && world_size > 1 => Err(error!(
                InvalidCommunicator,
                "nb_rank is not set, which means 1 without groups, but the communicator has {ranks}; set nb_rank \
                 to {world_size}, or to 1 for the identity"
            )),
            None if layer.nb_rank != 1 && layer.nb_rank != world_size => {
                Err(error!(InvalidCommunicator, "nb_rank is {}, but the communicator has {ranks}", layer.nb_rank))
            }
            None => Ok(()),
        };
        let result = result.and_then(|()| match layer.nb_rank {
            1 => Ok(()),
            _ => communicator
                .check_reduction(layer.collective.reduce_op())
                .and_then(|()| communicator.as_backend().check_device()),
        });
        result.map_err(|e| e.about(|| layer.subject.to_string()))
    }

    /// This rank's role in a layer that fits. Collective where the layer has groups.
    pub(crate) fn role(&mut self, layer: &ResolvedLayer) -> Result<Role> {
        if layer.is_identity() {
            return Ok(Role::Identity);
        }
        if layer.groups == Groups::All {
            return Ok(Role::Member(self.communicator.clone()));
        }
        if let Some((_, role)) = self.groups.iter().find(|(groups, _)| *groups == layer.groups) {
            return Ok(role.clone());
        }
        let role = self.split(&layer.groups)?;
        self.groups.push((layer.groups.clone(), role.clone()));
        Ok(role)
    }

    fn split(&self, groups: &Groups) -> Result<Role> {
        let rank = self.communicator.rank();
        if groups.group_len() == Some(1) {
            // A member has no peers, and the other ranks skip the layer.
            return Ok(if groups.contains(rank) { Role::Identity } else { Role::Skip });
        }
        let communicator = self.communicator.split_into(groups.group_of(rank), self.deadline)?;
        Ok(communicator.map_or(Role::Skip, Role::Member))
    }
}

/// A [`DistCollectiveLayer`] on a communicator, ready to run: the layer by itself, for engines with
/// a graph of their own.
///
/// ```
/// use distcollective::{Communicator, DataType, DistCollective, ReduceOperation};
///
/// let sums = Communicator::spawn(2, |communicator| {
///     let all_reduce = DistCollective::all_reduce(ReduceOperation::Sum).nb_rank(2);
///     let layer = all_reduce.named("grad_sync").into_layer();
///     let bound = layer.bind(&communicator, DataType::Float32)?;
///     let mut y = [0.0f32; 2];
///     bound.execute(Some(&[1.0f32, 2.0]), Some(&mut y), &[2])?;
///     Ok(y)
/// })?;
/// assert_eq!(sums, [[2.0, 4.0]; 2]);
/// # Ok::<(), distcollective::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct BoundLayer {
    state: Arc<BoundState>,
    timeout: Duration,
}

/// What handles on a bound layer share, so that a run needs one more handle and no more.
#[derive(Debug)]
struct BoundState {
    layer: ResolvedLayer,
    /// Its runs. Each has an id that is a part of its call, so that ranks whose layers run in
    /// different orders get an error.
    counter: Arc<RunCounter>,
    role: Role,
    data_type: DataType,
    communicator: Communicator,
    runs: Runs,
}

/// Runs whose shape a layer has seen, since it mostly runs on the same shape again.
#[derive(Debug, Default)]
struct Runs {
    /// The first one, which takes no lock.
    first: OnceLock<RunOnShape>,
    /// The latest one on another shape.
    latest: Mutex<Option<RunOnShape>>,
}

/// What the input's shape says of a run.
#[derive(Clone, Copy, Debug)]
struct RunOnShape {
    input: Shape,
    output: Shape,
    call: Call,
}

impl RunOnShape {
    fn is_on(&self, dims: &[usize]) -> bool {
        self.input.as_slice().iter().eq(dims)
    }
}

impl DistCollectiveLayer {
    /// Binds the layer to a communicator: checks that it fits, compares it with the other ranks'
    /// layers and splits off its groups. Collective, unless the layer is the identity (`nb_rank` is
    /// 1, without groups).
    ///
    /// # Errors
    ///
    /// Attributes that do not fit each other, the type or the communicator; ranks that differ; see
    /// the contract of [`Communicator`].
    pub fn bind(&self, communicator: &Communicator, data_type: DataType) -> Result<BoundLayer> {
        let layer = self.resolve_one().and_then(|layer| {
            self.check_type(data_type)?;
            Roles::check(communicator, &layer)?;
            Ok(layer)
        });
        let bound = |layer, number, role| {
            let (timeout, communicator, runs) = (communicator.timeout(), communicator.clone(), Runs::default());
            let counter = Arc::new(RunCounter::new(number));
            let state = Arc::new(BoundState { layer, counter, role, data_type, communicator, runs });
            BoundLayer { state, timeout }
        };
        if layer.as_ref().map_or(self.nb_rank.is_some() && self.is_identity(), ResolvedLayer::is_identity) {
            communicator.check()?;
            return Ok(bound(layer?, NonZeroU16::MIN, Role::Identity));
        }
        let deadline = communicator.deadline();
        let bind = || {
            let call = layer.as_ref().map_err(Clone::clone).map(|layer| [PlannedCall::new(layer, data_type, None)]);
            let call = call.as_ref().map(<[_; 1]>::as_slice).map_err(Clone::clone);
            let number = agree(communicator, call, "", Needs::default(), deadline)?.number;
            let layer = layer?;
            let role = Roles::new(communicator, deadline).role(&layer)?;
            Ok(bound(layer, number, role))
        };
        communicator.in_turn(Extent::Communicator, &"bind", deadline, bind)
    }
}

impl BoundLayer {
    /// The shape of the output for an input shape.
    ///
    /// # Errors
    ///
    /// A shape that the operation cannot take.
    pub fn output_shape(&self, input: &[usize]) -> Result<Shape> {
        self.state.layer.output_shape(self.state.data_type, &Shape::new(input)?)
    }

    fn call(&self, input: &Shape) -> Call {
        self.state.layer.call(self.state.data_type, input.element_count(), self.state.role.group_len())
    }

    /// What `take` takes of the run on an input of shape `dims`.
    ///
    /// # Errors
    ///
    /// A shape that the operation cannot take.
    fn take_of_run<T>(&self, dims: &[usize], take: impl FnOnce(&RunOnShape) -> T) -> Result<T> {
        let Runs { first, latest } = &self.state.runs;
        if let Some(run) = first.get().filter(|run| run.is_on(dims)) {
            return Ok(take(run));
        }
        // Another thread may hold the lock, and in a child that was forked for ever.
        let Ok(mut latest) = latest.try_lock() else { return self.new_run(dims).map(|run| take(&run)) };
        match &mut *latest {
            Some(run) if run.is_on(dims) => Ok(take(run)),
            latest => {
                let run = latest.insert(self.new_run(dims)?);
                first.get_or_init(|| *run);
                Ok(take(run))
            }
        }
    }

    fn new_run(&self, dims: &[usize]) -> Result<RunOnShape> {
        let input = Shape::new(dims)?;
        let output = self.state.layer.output_shape(self.state.data_type, &input)?;
        Ok(RunOnShape { input, output, call: self.call(&input) })
    }

    /// A run on these buffers.
    fn request<'a>(&'a self, call: Call, sides: [Address; 2], stream: Option<&'a Stream>) -> Request<'a> {
        let (label, stream) = (Some(&*self.state.layer.subject), stream.and_then(Stream::as_cuda));
        Request { label, stream, ..Request::new(call, sides, rough_deadline_after(self.timeout)) }
    }

    /// Checks the buffers of a run. That is not done again when its turn comes.
    fn check<'a>(&'a self, request: &'a mut Request<'_>) -> Result<Checked<'a>> {
        self.state.role.check(request)
    }

    /// Says in an error which rank and layer it is about.
    fn about(&self, error: Error) -> Error {
        self.state.communicator.about(&self.state.layer.subject, error)
    }

    /// Where input and output may share memory on this rank.
    ///
    /// # Errors
    ///
    /// A shape that the operation cannot take.
    pub fn in_place(&self, input: &[usize]) -> Result<InPlace> {
        self.output_shape(input)?;
        Ok(match &self.state.role {
            Role::Identity => InPlace::SameAddress,
            Role::Skip => InPlace::Unused,
            Role::Member(communicator) => self.call(&Shape::new(input)?).in_place(GroupRank(communicator.rank().0)),
        })
    }

    /// The same layer with another timeout for its calls; see [`Communicator::with_timeout`].
    #[must_use = "it is another handle; this one keeps its timeout"]
    pub fn with_timeout(&self, timeout: Duration) -> Self {
        BoundLayer { timeout, ..self.clone() }
    }

    /// Whether this rank's input is read.
    pub fn reads_input(&self) -> bool {
        self.state.role.reads_input(&self.call(&Shape::default()))
    }

    /// Whether this rank's output is written.
    pub fn writes_output(&self) -> bool {
        self.state.role.writes_output(&self.call(&Shape::default()))
    }

    /// Runs the layer on an input of shape `dims` and blocks. A buffer that this rank does not use
    /// may be `None`, which then names a type: `None::<&[f32]>`. Collective.
    ///
    /// # Errors
    ///
    /// A shape that the operation cannot take; a buffer of another type or length; a missing,
    /// misaligned or overlapping buffer; see the contract of [`Communicator`].
    pub fn execute<'a, 'b>(
        &self,
        input: Option<impl TryInto<TensorView<'a>, Error: Into<Error>>>,
        output: Option<impl TryInto<TensorViewMut<'b>, Error: Into<Error>>>,
        dims: &[usize],
    ) -> Result<()> {
        let input = input.map(|input| input.try_into().map_err(Into::into)).transpose();
        let mut output = output.map(|output| output.try_into().map_err(Into::into)).transpose();
        let raws = [
            input.as_ref().map(|input| input.as_ref().map(TensorView::raw)).map_err(Clone::clone),
            output.as_mut().map(|output| output.as_mut().map(TensorViewMut::raw)).map_err(|error| error.clone()),
        ];
        let refused = |error| self.refused(error, &Stream::inline());
        let run = CountedRun::new(&self.state.counter);
        let mut request = self.request_on_views(raws, dims).map_err(refused)?;
        request.run = Some(&run);
        let checked = self.check(&mut request).map_err(refused)?;
        // SAFETY: the buffers have just been checked, and the views borrow them.
        unsafe { self.run_here(&checked) }
    }

    /// A run on an input and an output, which has their lengths.
    fn request_on_views(&self, views: [Result<Option<&RawTensor>>; 2], dims: &[usize]) -> Result<Request<'_>> {
        let BoundState { role, data_type, communicator, .. } = &*self.state;
        let [input, output] = views;
        let (input, output) = (input?, output?);
        let RunOnShape { input: input_shape, output: output_shape, call } = self.take_of_run(dims, |run| *run)?;
        let check = |name: &str, raw: Option<&RawTensor>, shape: &Shape, used: bool| match raw {
            None if used => bail!(NotReady, "{}", call.lacks(role.group_rank(), name)),
            Some(raw) if raw.data_type != *data_type => {
                bail!(InvalidBuffer, "the {name} is {}, and the layer's type {data_type}", raw.data_type)
            }
            Some(raw) if raw.byte_len != shape.byte_len(*data_type) => {
                bail!(InvalidBuffer, "the {name} has {} elements, and its shape is {shape}", raw.element_count())
            }
            _ => Ok(()),
        };
        check("input", input, &input_shape, role.reads_input(&call))?;
        check("output", output, &output_shape, role.writes_output(&call))?;
        let nowhere = Address { pointer: std::ptr::null_mut(), space: communicator.space() };
        let sides = [input, output].map(|raw| raw.map_or(nowhere, RawTensor::located));
        Ok(self.request(call, sides, None))
    }

    /// [`ExecutionContext::refuse_run`](crate::ExecutionContext::refuse_run) for the layer's next
    /// run.
    ///
    /// ```
    /// use distcollective::{Communicator, DataType, DistCollective, ErrorKind, ReduceOperation};
    ///
    /// Communicator::spawn(2, |communicator| {
    ///     let all_reduce = DistCollective::all_reduce(ReduceOperation::Sum).nb_rank(2);
    ///     let bound = all_reduce.into_layer().bind(&communicator, DataType::Float32)?;
    ///     let mut y = [0.0f32];
    ///     match communicator.rank().0 {
    ///         0 => bound.refuse_run("the request has no image")?,
    ///         _ => {
    ///             let error = bound.execute(Some(&[1.0f32]), Some(&mut y), &[1]).unwrap_err();
    ///             assert_eq!(error.kind(), ErrorKind::RunRefused);
    ///         }
    ///     }
    ///     bound.execute(Some(&[1.0f32]), Some(&mut y), &[1])?;
    ///     assert_eq!(y, [2.0]);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), distcollective::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// See the contract of [`Communicator`].
    pub fn refuse_run(&self, reason: &str) -> Result<()> {
        self.refused_run(reason).tell(&self.state.layer.subject)
    }

    fn refused_run(&self, reason: impl Into<String>) -> RefusedRun {
        let BoundState { role, communicator, counter, .. } = &*self.state;
        let members = if let Role::Member(member) = role { vec![member.clone()] } else { Vec::new() };
        let (communicator, runs, extent) = (communicator.clone(), Arc::clone(counter), Extent::WithGroups);
        let deadline = rough_deadline_after(self.timeout);
        RefusedRun { communicator, members, can_go_on: true, extent, runs, reason: reason.into(), deadline }
    }

    /// The error of a run that cannot begin. The other ranks learn of it.
    fn refused(&self, error: Error, stream: &Stream) -> Error {
        self.refused_run(error.to_string()).tell_on(stream, &self.state.layer.subject);
        self.about(error)
    }

    /// Makes a call of the layer on this thread, when its turn has come.
    ///
    /// # Safety
    ///
    /// As [`Checked::run`].
    unsafe fn run_here(&self, checked: &Checked<'_>) -> Result<()> {
        let BoundState { layer, communicator, .. } = &*self.state;
        // SAFETY: the caller's promise.
        let run = || unsafe { checked.run() };
        communicator.in_turn(Extent::WithGroups, &layer.subject, checked.deadline(), run).map_err(|e| self.about(e))
    }

    /// Runs the layer on raw addresses on a stream, as a plugin's enqueue does. They are in the
    /// memory of [`Communicator::space`]. An address that this rank does not use may be null.
    /// Collective.
    ///
    /// # Safety
    ///
    /// As far as this rank uses them, the input holds a tensor of shape `dims` and the output has
    /// room for one of [`output_shape`](Self::output_shape), and no other code uses that memory:
    /// until the work is done, and for ever if it is leaked before.
    ///
    /// # Errors
    ///
    /// A shape that the operation cannot take; misaligned, overlapping or null addresses. From
    /// [`Work::wait`]: see the contract of [`Communicator`].
    pub unsafe fn enqueue(
        &self,
        input: *const u8,
        output: *mut u8,
        dims: &[usize],
        stream: &Stream,
    ) -> Result<Work<RawCollective>> {
        let refused = |error| self.refused(error, stream);
        let call = self.take_of_run(dims, |run| run.call).map_err(refused)?;
        let space = self.state.communicator.space();
        let sides = [input.cast_mut(), output].map(|pointer| Address { pointer, space });
        let run = CountedRun::new(&self.state.counter);
        let mut request = Request { run: Some(&run), ..self.request(call, sides, Some(stream)) };
        let checked = self.check(&mut request).map_err(refused)?;
        if stream.is_inline() {
            // SAFETY: the caller's promise.
            return Ok(Work::ended(RawCollective::default(), unsafe { self.run_here(&checked) }));
        }
        let BoundState { layer, role, communicator, counter, .. } = &*self.state;
        let member = if let Role::Member(member) = role { member } else { communicator };
        let task = RawCollective::new(member, &checked, Some((Arc::clone(&layer.subject), Arc::clone(counter))));
        Ok(stream.submit(task, Some(communicator.order(Extent::WithGroups)), None))
    }
}
