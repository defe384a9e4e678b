//! The broadcast of a dictionary: `dcl_broadcast_tensor_dict`.

use std::ffi::c_void;

use dcl::comm::BackendKind;
use dcl::tensor::MemorySpace;
use dcl::tensor_dict::BroadcastOptions;

use super::arguments::{InPointer, OutPointer, SizedStruct, TextPointer, unsigned, zero};
use super::communicator::CCommunicator;
use super::handle::Handle;
use super::library::UserData;
use super::status::{CallError, Result, Status, call};
use super::stream::{AnyWork, CStream, CWork, enqueue};
use super::tensor_dict::{CTensorDict, space};

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
    const FIRST_BYTE_LEN: usize = 56;
    const INITIAL: Self = CBroadcastOptions {
        struct_size: size_of::<Self>(),
        src: 0,
        device: DEVICE_UNSET,
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
            let text = format!("the options ask for backend {backend}, and the communicator has backend {own}");
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
        let backend = communicator.communicator.backend();
        let options = options.or_initial("options").and_then(|options| options.translate(backend));
        // A mistake of this rank is one that the broadcast tells every rank of.
        let options = options.unwrap_or_else(|error| BroadcastOptions::new().refuse(error.into()));
        enqueue(stream, work, |stream| {
            let begun = dict.lend(|dict| {
                let begun = communicator.communicator.broadcast_tensor_dict_async(dict, &options, stream);
                begun.map_err(|refused| (*refused.operands, CallError::from(refused.error)))
            });
            begun.map(AnyWork::Broadcast)
        })
    })
}
