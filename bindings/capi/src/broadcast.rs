//! The broadcast of a dictionary: `dcl_broadcast_tensor_dict`.

use std::ffi::c_void;
use std::sync::Mutex;
use std::time::Duration;

use dcl::comm::BackendKind;
use dcl::stream::EnqueueError;
use dcl::tensor::MemorySpace;
use dcl::tensor_dict::BroadcastOptions;
use dcl::{Communicator, TensorDict, Work};

use super::arguments::{InPointer, OutPointer, SizedStruct, TextPointer, unsigned, zero};
use super::communicator::CCommunicator;
use super::environment::CEnvironment;
use super::handle::Handle;
use super::library::UserData;
use super::status::{CallError, Result, Status, call, lock};
use super::stream::{AnyWork, CStream, CWork, enqueue};
use super::tensor_dict::{CTensorDict, space};

/// The name of the group of all ranks.
const DEFAULT_GROUP: &str = "default";

/// A `device` that the caller does not set.
const DEVICE_UNSET: i32 = -2;

/// `dcl_progress_callback_t`.
type ProgressCallback = extern "C" fn(byte_count: u64, total_bytes: u64, user_data: *mut c_void);

/// `dcl_broadcast_options_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct CBroadcastOptions {
    struct_size: usize,
    src: i32,
    device: i32,
    group_name: TextPointer,
    backend: TextPointer,
    offload_to_cpu: i32,
    pin_memory: i32,
    shared: i32,
    reserved: i32,
    progress: Option<ProgressCallback>,
    user_data: *mut c_void,
}

const _: () = assert!(size_of::<CBroadcastOptions>() == CBroadcastOptions::FIRST_BYTE_LEN);

// SAFETY: the fields are numbers and pointers; the size comes first. A callback may be NULL.
unsafe impl SizedStruct for CBroadcastOptions {
    const FIRST_BYTE_LEN: usize = 64;
    const INITIAL: Self = CBroadcastOptions {
        struct_size: size_of::<Self>(),
        src: 0,
        device: DEVICE_UNSET,
        group_name: TextPointer::NULL,
        backend: TextPointer::NULL,
        offload_to_cpu: 0,
        pin_memory: 0,
        shared: 0,
        reserved: 0,
        progress: None,
        user_data: std::ptr::null_mut(),
    };
}

impl CBroadcastOptions {
    /// The options for a group; if one has a value that no broadcast of the group has, options that
    /// tell every rank of the mistake.
    fn for_group(self, group: &Communicator) -> BroadcastOptions {
        self.translate(group.backend()).unwrap_or_else(|error| BroadcastOptions::new().refuse(error.into()))
    }

    fn translate(self, own: BackendKind) -> Result<BroadcastOptions> {
        let c = self;
        zero("reserved of options", c.reserved)?;
        let mut options =
            BroadcastOptions::new().src(unsigned("src", c.src)?).pin_memory(c.pin_memory != 0).shared(c.shared != 0);
        if c.device != DEVICE_UNSET {
            options = options.device(space(c.device)?);
        }
        if c.offload_to_cpu != 0 {
            options = options.device(MemorySpace::Host);
        }
        let backend = c.backend.optional("backend")?.map_or(Ok(BackendKind::Auto), str::parse)?;
        if ![BackendKind::Auto, own].contains(&backend) {
            let text = format!("the options ask for backend {backend}, and the group has backend {own}");
            return Err(CallError::invalid_argument(text));
        }
        if let Some(progress) = c.progress {
            let user_data = UserData(c.user_data);
            options = options.progress(move |done| {
                let UserData(user_data) = &user_data;
                progress(done.byte_count, done.total_bytes, *user_data);
            });
        }
        Ok(options)
    }

    /// The name of the group.
    fn group(&self) -> Result<&str> {
        Ok(self.group_name.optional("group_name")?.unwrap_or(DEFAULT_GROUP))
    }

    /// The options of a call that has a group already, which are not to name another.
    fn without_group(self) -> Result<Self> {
        match self.group()? {
            DEFAULT_GROUP => Ok(self),
            name => Err(CallError::invalid_argument(format!(
                "the options name group {name:?}; a communicator is a group itself, and only the environment finds one \
                 by name"
            ))),
        }
    }
}

/// A broadcast on a stream. The handles of the work and of the dictionary share it, so the
/// dictionary comes back when the broadcast has ended, whichever handle is freed first.
pub(super) struct BroadcastWork(Mutex<State>);

enum State {
    Pending(Work<TensorDict>),
    /// A call waits for it, without the lock.
    Awaited,
    Ended {
        result: Result<()>,
        /// Until the dictionary's handle takes it.
        dict: Option<TensorDict>,
    },
}

impl State {
    /// The state after a wait for the work.
    fn after(work: Work<TensorDict>, timeout: Duration) -> Self {
        match work.wait_timeout(timeout) {
            Ok(Ok(dict)) => State::Ended { result: Ok(()), dict: Some(dict) },
            Ok(Err(EnqueueError { error, operands })) => {
                State::Ended { result: Err(error.into()), dict: Some(*operands) }
            }
            Err(work) => State::Pending(work),
        }
    }

    /// The result; `None` if the broadcast goes on.
    fn result(&self) -> Option<Result<()>> {
        match self {
            State::Ended { result, .. } => Some(result.clone()),
            _ => None,
        }
    }
}

impl BroadcastWork {
    pub(super) fn new(work: Work<TensorDict>) -> Self {
        BroadcastWork(Mutex::new(State::Pending(work)))
    }

    pub(super) fn is_done(&self) -> bool {
        match &*lock(&self.0) {
            State::Pending(work) => work.is_done(),
            State::Awaited => false,
            State::Ended { .. } => true,
        }
    }

    pub(super) fn is_settled(&self) -> bool {
        match &*lock(&self.0) {
            State::Pending(work) => work.is_settled(),
            State::Awaited => false,
            State::Ended { .. } => true,
        }
    }

    pub(super) fn check_wait(&self) -> Result<()> {
        match &*lock(&self.0) {
            State::Pending(work) => Ok(work.check_wait()?),
            _ => Ok(()),
        }
    }

    /// Waits for the broadcast, and gives its result; `None` if it goes on. One call waits at a
    /// time: the owner of the work's handle, or the stream.
    pub(super) fn wait(&self, timeout: Duration) -> Option<Result<()>> {
        let before = std::mem::replace(&mut *lock(&self.0), State::Awaited);
        let after = match before {
            State::Pending(work) => State::after(work, timeout),
            other => other,
        };
        let result = after.result();
        *lock(&self.0) = after;
        result
    }

    /// Takes the dictionary of a broadcast that has ended; `None` if it goes on.
    pub(super) fn take_back(&self) -> Result<Option<TensorDict>> {
        let state = &mut *lock(&self.0);
        if let State::Pending(work) = state
            && work.is_done()
        {
            work.check_wait()?;
            if let State::Pending(work) = std::mem::replace(state, State::Awaited) {
                *state = State::after(work, Duration::ZERO);
            }
        }
        match state {
            State::Ended { dict, .. } => Ok(dict.take()),
            _ => Ok(None),
        }
    }
}

#[unsafe(no_mangle)]
extern "C" fn dcl_broadcast_options_init(options: OutPointer<CBroadcastOptions>, struct_size: usize) -> Status {
    call(|| options.initialize("options", struct_size))
}

#[unsafe(no_mangle)]
extern "C" fn dcl_broadcast_tensor_dict(
    communicator: Handle<CCommunicator>,
    dict: Handle<CTensorDict>,
    options: InPointer<CBroadcastOptions>,
    stream: Handle<CStream>,
    work: OutPointer<Handle<CWork>>,
) -> Status {
    call(|| {
        let (communicator, dict) = (communicator.get()?, dict.get()?);
        let options = options.or_initial("options").and_then(CBroadcastOptions::without_group);
        let options = options.map_or_else(
            |error| BroadcastOptions::new().refuse(error.into()),
            |options| options.for_group(&communicator.communicator),
        );
        enqueue(stream, work, |stream| {
            let begun = dict.lend(|dict| {
                let begun = communicator.communicator.broadcast_tensor_dict_async(dict, &options, stream);
                begun.map_err(|refused| (*refused.operands, CallError::from(refused.error)))
            });
            begun.map(AnyWork::Broadcast)
        })
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_environment_broadcast_tensor_dict(
    environment: Handle<CEnvironment>,
    dict: Handle<CTensorDict>,
    options: InPointer<CBroadcastOptions>,
) -> Status {
    call(|| {
        let (environment, dict, options) = (environment.get()?, dict.get()?, options.or_initial("options")?);
        let name = options.group()?;
        let broadcast = |dict: &mut TensorDict| {
            environment.with(|environment| {
                let group = environment.group(name).map_err(|e| e.about(|| "broadcast_tensor_dict".to_owned()))?;
                group.broadcast_tensor_dict(dict, &options.for_group(&group))
            })
        };
        dict.write(|dict| Ok(broadcast(dict)??))
    })
}
