//! The NCCL library, loaded when it is first used. Every symbol may be absent.

use std::ffi::CStr;
use std::os::raw::c_char;
use std::sync::OnceLock;

use super::super::NcclId;
use super::sys::{
    self, NCCL_API_MAGIC, ncclComm_t, ncclConfig_t, ncclRemoteError, ncclResult_t, ncclSuccess, ncclTimeout,
    ncclUniqueId,
};
use crate::cuda::helper::settle_at_exit;
use crate::cuda::library::Unloaded;
use crate::error::{Error, ErrorKind, Result, bail, error};

/// The file names to try, in TensorRT's order.
const NAMES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];

/// The oldest version that TensorRT takes.
const OLDEST: NcclVersion = (2, 19, 0);

/// The oldest version that brings a thread out of a call on a communicator that blocks:
/// ncclCommAbort in a group only sets flags, and every wait for other ranks or for the GPU ends by
/// them. (Until 2.21 ncclCommAbort frees at once. Until 2.26 a wait for room among what was
/// enqueued, waitWorkFifoAvailable in `enqueue.cc`, does not end.)
const OLDEST_THAT_MAY_BLOCK: NcclVersion = (2, 27, 3);

/// Major, minor and patch of a version of NCCL.
pub(crate) type NcclVersion = (i32, i32, i32);

/// What the library leaves to NCCL from some version on, and does without or by itself before.
#[derive(Clone, Copy)]
enum Feature {
    /// Symmetric windows.
    Windows,
    /// Reductions of float8, on the GPUs that NCCL reduces it on.
    Float8,
    /// AlltoAll, Gather and Scatter.
    AllToAll,
}

impl Feature {
    /// The functions that it needs, the first version that has it right, and both in words: what is
    /// right from then on, and what ranks do before.
    fn needs(self) -> (&'static [&'static str], NcclVersion, [&'static str; 2]) {
        match self {
            // Before 2.30.7 the kernels lack cudaGridDependencySynchronize (NCCL's commit
            // 2948185d), and in graphs a barrier (sglang #37768). Before 2.28.7 they corrupt
            // messages that are no multiple of 8 bytes (release notes).
            Feature::Windows => (
                &["ncclCommWindowRegister", "ncclCommWindowDeregister"],
                (2, 30, 7),
                ["symmetric windows give right results", "none are used"],
            ),
            // ncclNumTypes in nccl.h was 10, and ArgsCheck in `enqueue.cc` refused float8.
            Feature::Float8 => (&[], (2, 24, 3), ["float8 is reduced", "ranks exchange it, and a kernel reduces it"]),
            Feature::AllToAll => (
                &["ncclAlltoAll", "ncclGather", "ncclScatter"],
                (2, 28, 3),
                ["all_to_all, gather and scatter are there", "they are made of sends and receives"],
            ),
        }
    }
}

/// NCCL as it was loaded.
pub(crate) struct NcclLibrary {
    pub(crate) name: &'static str,
    pub(crate) version: NcclVersion,
    /// The functions that it lacks.
    lacking: Vec<&'static str>,
}

/// Loads NCCL, once.
pub(crate) fn library() -> Result<&'static NcclLibrary> {
    static LIBRARY: OnceLock<Result<NcclLibrary>> = OnceLock::new();
    LIBRARY.get_or_init(NcclLibrary::find).as_ref().map_err(Clone::clone)
}

impl NcclLibrary {
    fn find() -> Result<Self> {
        let name = sys::load(&NAMES, |tried| {
            error!(
                Unsupported,
                "NCCL is not to be found; tried {tried}. It is in the package libnccl2 and in the PyPI package \
                 nvidia-nccl-cu13, whose lib folder then has to be in LD_LIBRARY_PATH"
            )
        })?;
        settle_at_exit();
        let mut library = NcclLibrary { name, version: OLDEST, lacking: sys::lacking() };
        let mut code = 0;
        // SAFETY: writes one number.
        library.check("ncclGetVersion", unsafe { sys::ncclGetVersion(&mut code) })?;
        // 23007 is 2.30.7. Versions up to 2.8, which are too old, had one digit less.
        library.version = (code / 10_000, code / 100 % 100, code % 100);
        if library.version < OLDEST {
            bail!(Unsupported, "{name} is NCCL {}; {} or newer is needed", library.version_text(), dotted(OLDEST));
        }
        Ok(library)
    }

    /// The version as text: `2.30.7`.
    pub(crate) fn version_text(&self) -> String {
        dotted(self.version)
    }

    pub(crate) fn has_windows(&self) -> bool {
        self.has(Feature::Windows)
    }

    pub(crate) fn reduces_float8(&self) -> bool {
        self.has(Feature::Float8)
    }

    pub(crate) fn has_all_to_all(&self) -> bool {
        self.has(Feature::AllToAll)
    }

    /// Whether a feature is there and right.
    fn has(&self, feature: Feature) -> bool {
        let (functions, since, _) = feature.needs();
        self.version >= since && functions.iter().all(|name| !self.lacking.contains(name))
    }

    /// What ranks do in place of the features that it lacks.
    pub(crate) fn detours(&self) -> Vec<String> {
        let lacking = [Feature::Windows, Feature::Float8, Feature::AllToAll].into_iter().filter(|f| !self.has(*f));
        let text = |feature: Feature| {
            let (_, since, [right, before]) = feature.needs();
            format!("{right} from {} on; {before}", dotted(since))
        };
        lacking.map(text).collect()
    }

    /// Whether communicators of the library's own block.
    pub(super) fn can_block(&self) -> bool {
        self.version >= OLDEST_THAT_MAY_BLOCK
    }

    /// A new id for a communicator.
    pub(crate) fn unique_id(&self) -> Result<NcclId> {
        let mut id = ncclUniqueId { internal: [0; 128] };
        // SAFETY: writes one id.
        self.check("ncclGetUniqueId", unsafe { sys::ncclGetUniqueId(&mut id) })?;
        Ok(NcclId(id.internal.map(|byte| byte.to_ne_bytes()[0])))
    }

    /// The result of a call without a communicator, as an error of this crate.
    pub(super) fn check(&self, what: &str, result: ncclResult_t) -> Result<()> {
        if result == ncclSuccess { Ok(()) } else { Err(self.error(what, result, std::ptr::null_mut())) }
    }

    /// The error for a result, with NCCL's last message as a hint.
    pub(super) fn error(&self, what: &str, result: ncclResult_t, communicator: ncclComm_t) -> Error {
        if result == ncclResult_t::UNLOADED {
            return error!(
                Unsupported,
                "{what}: {} (NCCL {}) lacks a function for that",
                self.name,
                self.version_text()
            );
        }
        let text = |pointer: *const c_char| match pointer.is_null() {
            true => String::new(),
            // SAFETY: the texts of both functions below live long enough to be copied.
            false => unsafe { CStr::from_ptr(pointer) }.to_string_lossy().trim().to_owned(),
        };
        // SAFETY: any number is allowed.
        let meaning = text(unsafe { sys::ncclGetErrorString(result) });
        // SAFETY: a null communicator is allowed.
        let hint = text(unsafe { sys::ncclGetLastError(communicator) });
        let kind = if result == ncclRemoteError {
            ErrorKind::PeerLost
        } else if result == ncclTimeout {
            ErrorKind::DeadlineExceeded
        } else {
            ErrorKind::System
        };
        let error = Error::new(kind, format!("{what}: NCCL says {} ({meaning})", result_name(result)));
        if hint.is_empty() {
            return error;
        }
        error.followed_by(&format!("; NCCL's last message, which may be about something else: {hint:?}"))
    }

    /// The configuration of a new communicator: whether calls block. It is the oldest version's,
    /// which every newer one takes.
    pub(super) fn config(&self) -> ncclConfig_t {
        let undefined = i32::MIN;
        ncclConfig_t {
            size: size_of::<ncclConfig_t>(),
            magic: NCCL_API_MAGIC,
            version: (OLDEST.0 * 10_000 + OLDEST.1 * 100 + OLDEST.2) as u32,
            blocking: i32::from(self.can_block()),
            cgaClusterSize: undefined,
            minCTAs: undefined,
            maxCTAs: undefined,
            netName: std::ptr::null(),
            splitShare: undefined,
            trafficClass: undefined,
        }
    }
}

fn dotted((major, minor, patch): NcclVersion) -> String {
    format!("{major}.{minor}.{patch}")
}

impl From<&NcclId> for ncclUniqueId {
    fn from(id: &NcclId) -> Self {
        ncclUniqueId { internal: std::array::from_fn(|index| id.as_bytes()[index] as c_char) }
    }
}

/// NCCL's names of its results, by number.
const RESULT_NAMES: [&str; 9] = [
    "ncclSuccess",
    "ncclUnhandledCudaError",
    "ncclSystemError",
    "ncclInternalError",
    "ncclInvalidArgument",
    "ncclInvalidUsage",
    "ncclRemoteError",
    "ncclInProgress",
    "ncclTimeout",
];

fn result_name(result: ncclResult_t) -> String {
    RESULT_NAMES.get(result as usize).map_or_else(|| format!("result {result}"), |name| (*name).to_owned())
}
