//! The broadcast of a dictionary: `dcl_broadcast_tensor_dict`.

use std::ffi::c_void;

use dcl::comm::BackendKind;
use dcl::tensor::MemorySpace;
use dcl::tensor_dict::BroadcastOptions;
use dcl::{Communicator, TensorDict};

use super::arguments::{InPointer, OutPointer, SizedStruct, TextPointer, unsigned, zero};
use super::communicator::CCommunicator;
use super::environment::CEnvironment;
use super::handle::Handle;
use super::library::UserData;
use super::status::{CallError, Result, Status, call};
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
