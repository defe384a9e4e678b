//! MPI's functions, with handles as numbers: the same for every MPI.

use std::ffi::{c_char, c_int, c_void};
use std::ptr::null_mut;

use libloading::os::unix::Library;

use super::abi::{Abi, Constants, HandleNumber, MpiHandle, STATUS_INTS};
use crate::error::{Result, bail, error};

/// Declares a table of functions of the library. All give an error code.
macro_rules! functions {
    ($($field:ident = $name:literal($($type:ty),* $(,)?);)*) => {
        struct MpiFunctions<H> {
            $($field: unsafe extern "C" fn($($type),*) -> c_int,)*
        }

        impl<H> MpiFunctions<H> {
            /// # Safety
            ///
            /// `H` is the type of the library's handles.
            unsafe fn of(library: &Library, file: &str) -> Result<Self> {
                let lacks = |name| error!(Unsupported, "{file} has no {name}; it is older than MPI 3");
                // SAFETY: the table has the types of the standard.
                unsafe { Ok(MpiFunctions { $($field: *library.get($name).map_err(|_| lacks($name))?,)* }) }
            }
        }
    };
}

/// The room that a status takes in every MPI.
#[derive(Default)]
#[repr(C, align(8))]
struct MpiStatus([c_int; STATUS_INTS]);

type CopyFunction<H> = unsafe extern "C" fn(H, c_int, *mut c_void, *mut c_void, *mut c_void, *mut c_int) -> c_int;
type DeleteFunction<H> = unsafe extern "C" fn(H, c_int, *mut c_void, *mut c_void) -> c_int;

functions! {
    initialized = "MPI_Initialized"(*mut c_int);
    finalized = "MPI_Finalized"(*mut c_int);
    init_thread = "MPI_Init_thread"(*mut c_int, *mut c_void, c_int, *mut c_int);
    query_thread = "MPI_Query_thread"(*mut c_int);
    finalize = "MPI_Finalize"();
    library_version = "MPI_Get_library_version"(*mut c_char, *mut c_int);
    error_string = "MPI_Error_string"(c_int, *mut c_char, *mut c_int);
    test_inter = "MPI_Comm_test_inter"(H, *mut c_int);
    rank = "MPI_Comm_rank"(H, *mut c_int);
    size = "MPI_Comm_size"(H, *mut c_int);
    duplicate = "MPI_Comm_idup"(H, *mut H, *mut H);
    set_error_handler = "MPI_Comm_set_errhandler"(H, H);
    create_key = "MPI_Comm_create_keyval"(CopyFunction<H>, DeleteFunction<H>, *mut c_int, *mut c_void);
    set_attribute = "MPI_Comm_set_attr"(H, c_int, *mut c_void);
    send = "MPI_Isend"(*const u64, c_int, H, c_int, c_int, H, *mut H);
    probe = "MPI_Improbe"(c_int, c_int, H, *mut c_int, *mut H, *mut MpiStatus);
    probe_only = "MPI_Iprobe"(c_int, c_int, H, *mut c_int, *mut MpiStatus);
    count = "MPI_Get_count"(*const MpiStatus, H, *mut c_int);
    receive = "MPI_Imrecv"(*mut u64, c_int, H, *mut H, *mut H);
    test = "MPI_Test"(*mut H, *mut c_int, *mut MpiStatus);
}

/// A request that has not ended, as far as is known.
pub(super) struct MpiRequest(HandleNumber);

/// A message that has come, and is to be received.
pub(super) struct Probed {
    pub(super) from: u32,
    pub(super) word_count: usize,
    message: HandleNumber,
}

/// How far MPI is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MpiPhase {
    New,
    /// It is initialized. Any thread may call it at any time, or not.
    Initialized {
        allows_threads: bool,
    },
    Finalized,
}

/// # Safety
///
/// From `rank_and_size` on, MPI is initialized and not finalized, and handles are valid. Memory
/// that is given with a request lives until that has ended.
pub(super) trait Api: Send + Sync {
    /// The first line of what the library says of itself.
    fn version(&self) -> String;
    fn phase(&self) -> MpiPhase;
    /// Initializes MPI so that any thread may call it. It may wait for all ranks without end.
    unsafe fn initialize(&self) -> Result<()>;
    unsafe fn finalize(&self);
    fn world(&self) -> HandleNumber;
    fn is_null(&self, communicator: HandleNumber) -> bool;
    /// Has errors of calls on a communicator returned.
    unsafe fn return_errors(&self, communicator: HandleNumber) -> Result<()>;
    unsafe fn rank_and_size(&self, communicator: HandleNumber) -> Result<(u32, u32)>;
    /// Begins to make a copy of a communicator, whose handle is written to `copy`.
    unsafe fn duplicate(&self, communicator: HandleNumber, copy: *mut HandleNumber) -> Result<MpiRequest>;
    /// The handle that [`duplicate`](Self::duplicate) has written. Its errors are returned.
    unsafe fn duplicated(&self, copy: *mut HandleNumber) -> Result<HandleNumber>;
    /// Has `call` called at the beginning of `MPI_Finalize`.
    unsafe fn before_finalize(&self, call: fn()) -> Result<()>;
    unsafe fn send(&self, words: &[u64], to: u32, communicator: HandleNumber) -> Result<MpiRequest>;
    unsafe fn probe(&self, communicator: HandleNumber) -> Result<Option<Probed>>;
    /// Lets MPI move messages, and takes none.
    unsafe fn progress(&self, communicator: HandleNumber) -> Result<()>;
    unsafe fn receive(&self, probed: &Probed, words: &mut [u64]) -> Result<MpiRequest>;
    /// Whether a request has ended; then it is not used again.
    unsafe fn has_ended(&self, request: &mut MpiRequest) -> Result<bool>;
}

/// The functions and constants of one library.
struct Bound<A: Abi> {
    functions: MpiFunctions<A::Handle>,
    constants: Constants,
}

/// Binds a library.
///
/// # Safety
///
/// It has this interface.
pub(super) unsafe fn bind<A: Abi>(library: &Library, file: &str) -> Result<Box<dyn Api>> {
    // SAFETY: a symbol's address is not used as one here.
    let symbol = |name: &str| unsafe { library.get::<*mut c_void>(name).ok().map(|symbol| symbol.into_raw().addr()) };
    let Some(constants) = A::constants(&symbol) else { bail!(Unsupported, "{file} is no MPI that is known") };
    // SAFETY: the caller's promise.
    let functions = unsafe { MpiFunctions::of(library, file)? };
    Ok(Box::new(Bound::<A> { functions, constants }))
}

/// The longest texts of all MPIs.
const LONGEST_TEXT: usize = 16 << 10;

/// A text that `write` writes.
fn text(write: impl FnOnce(*mut c_char, *mut c_int) -> c_int) -> String {
    let (mut bytes, mut len) = (vec![0u8; LONGEST_TEXT], 0);
    let code = write(bytes.as_mut_ptr().cast(), &mut len);
    bytes.truncate(if code == 0 { len as usize } else { 0 });
    String::from_utf8_lossy(&bytes).into_owned()
}

unsafe extern "C" fn copy_nothing<H>(
    _: H,
    _: c_int,
    _: *mut c_void,
    _: *mut c_void,
    _: *mut c_void,
    is_copied: *mut c_int,
) -> c_int {
    // SAFETY: MPI gives a place for the flag.
    unsafe { *is_copied = 0 };
    0
}

/// # Safety
///
/// The attribute is the address of a `fn()`.
unsafe extern "C" fn call_attribute<H>(_: H, _: c_int, attribute: *mut c_void, _: *mut c_void) -> c_int {
    // SAFETY: the caller's promise.
    let call = unsafe { std::mem::transmute::<*mut c_void, fn()>(attribute) };
    call();
    0
}

impl<A: Abi> Bound<A> {
    fn check(&self, what: &str, code: c_int) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: there is room for the longest text.
        let why = text(|bytes, len| unsafe { (self.functions.error_string)(code, bytes, len) });
        bail!(System, "{what}: {why} ({code})")
    }

    fn handle(number: HandleNumber) -> A::Handle {
        A::Handle::from_number(number)
    }

    fn flag(function: unsafe extern "C" fn(*mut c_int) -> c_int) -> bool {
        let mut flag = 0;
        // SAFETY: it may be called at any time, and writes a flag.
        unsafe { function(&mut flag) == 0 && flag != 0 }
    }
}

impl<A: Abi> Api for Bound<A> {
    fn version(&self) -> String {
        // SAFETY: it may be called at any time, and there is room for the longest text.
        let text = text(|bytes, len| unsafe { (self.functions.library_version)(bytes, len) });
        let line = text.lines().next().unwrap_or_default();
        line.split([',', '\0']).next().unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ")
    }

    fn phase(&self) -> MpiPhase {
        let mut level = 0;
        match () {
            () if Self::flag(self.functions.finalized) => MpiPhase::Finalized,
            () if Self::flag(self.functions.initialized) => {
                // SAFETY: MPI is initialized; it writes a number.
                let code = unsafe { (self.functions.query_thread)(&mut level) };
                MpiPhase::Initialized { allows_threads: code == 0 && level >= A::THREAD_MULTIPLE }
            }
            () => MpiPhase::New,
        }
    }

    unsafe fn initialize(&self) -> Result<()> {
        let mut level = 0;
        // SAFETY: the caller's promise; it writes a number.
        let code = unsafe { (self.functions.init_thread)(null_mut(), null_mut(), A::THREAD_MULTIPLE, &mut level) };
        self.check("MPI_Init_thread", code)
    }

    unsafe fn finalize(&self) {
        // SAFETY: the caller's promise.
        let _code = unsafe { (self.functions.finalize)() };
    }

    fn world(&self) -> HandleNumber {
        self.constants.world
    }

    fn is_null(&self, communicator: HandleNumber) -> bool {
        [0, Self::handle(self.constants.null).number()].contains(&Self::handle(communicator).number())
    }

    unsafe fn return_errors(&self, communicator: HandleNumber) -> Result<()> {
        let (communicator, errors_return) = (Self::handle(communicator), Self::handle(self.constants.errors_return));
        // SAFETY: the caller's promise.
        let code = unsafe { (self.functions.set_error_handler)(communicator, errors_return) };
        self.check("MPI_Comm_set_errhandler", code)
    }

    unsafe fn rank_and_size(&self, communicator: HandleNumber) -> Result<(u32, u32)> {
        let [mut rank, mut size, mut is_inter] = [0; 3];
        let communicator = Self::handle(communicator);
        // SAFETY: the caller's promise; each writes a number.
        unsafe {
            self.check("MPI_Comm_test_inter", (self.functions.test_inter)(communicator, &mut is_inter))?;
            self.check("MPI_Comm_rank", (self.functions.rank)(communicator, &mut rank))?;
            self.check("MPI_Comm_size", (self.functions.size)(communicator, &mut size))?;
        }
        if is_inter != 0 {
            bail!(InvalidArgument, "the communicator of MPI is an intercommunicator, whose ranks are two groups");
        }
        Ok((rank as u32, size as u32))
    }

    unsafe fn duplicate(&self, communicator: HandleNumber, copy: *mut HandleNumber) -> Result<MpiRequest> {
        let mut request = Self::handle(0);
        // SAFETY: the caller's promise; a handle is no longer than its number.
        let code = unsafe { (self.functions.duplicate)(Self::handle(communicator), copy.cast(), &mut request) };
        self.check("MPI_Comm_idup", code)?;
        Ok(MpiRequest(request.number()))
    }

    unsafe fn duplicated(&self, copy: *mut HandleNumber) -> Result<HandleNumber> {
        // SAFETY: the caller's promise: MPI has written the handle.
        let copy = unsafe { copy.cast::<A::Handle>().read() }.number();
        // SAFETY: as above.
        unsafe { self.return_errors(copy)? };
        Ok(copy)
    }

    unsafe fn before_finalize(&self, call: fn()) -> Result<()> {
        let (own, mut key) = (Self::handle(self.constants.own), 0);
        // SAFETY: the caller's promise. The attribute is what `call_attribute` takes.
        unsafe {
            let made = (self.functions.create_key)(copy_nothing, call_attribute, &mut key, null_mut());
            self.check("MPI_Comm_create_keyval", made)?;
            let set = (self.functions.set_attribute)(own, key, call as *mut c_void);
            self.check("MPI_Comm_set_attr", set)
        }
    }

    unsafe fn send(&self, words: &[u64], to: u32, communicator: HandleNumber) -> Result<MpiRequest> {
        let Ok(count) = c_int::try_from(words.len()) else {
            bail!(System, "a message of {} bytes; MPI takes at most 16 GiB", size_of_val(words))
        };
        let (uint64, communicator) = (Self::handle(self.constants.uint64), Self::handle(communicator));
        let mut request = Self::handle(0);
        // SAFETY: the caller's promise.
        let code =
            unsafe { (self.functions.send)(words.as_ptr(), count, uint64, to as c_int, 0, communicator, &mut request) };
        self.check("MPI_Isend", code)?;
        Ok(MpiRequest(request.number()))
    }

    unsafe fn probe(&self, communicator: HandleNumber) -> Result<Option<Probed>> {
        let (mut is_there, mut message, mut status, mut count) = (0, Self::handle(0), MpiStatus::default(), 0);
        let communicator = Self::handle(communicator);
        // SAFETY: the caller's promise. MPI writes a flag, and then a message and its status.
        unsafe {
            let (source, tag) = (A::ANY_SOURCE, A::ANY_TAG);
            let probed = (self.functions.probe)(source, tag, communicator, &mut is_there, &mut message, &mut status);
            self.check("MPI_Improbe", probed)?;
            if is_there == 0 {
                return Ok(None);
            }
            let counted = (self.functions.count)(&status, Self::handle(self.constants.uint64), &mut count);
            self.check("MPI_Get_count", counted)?;
        }
        let from = status.0[A::SOURCE_AT] as u32;
        match usize::try_from(count) {
            Ok(word_count) if word_count > 0 => Ok(Some(Probed { from, word_count, message: message.number() })),
            _ => bail!(System, "a message of rank {from} has {count} words"),
        }
    }

    unsafe fn progress(&self, communicator: HandleNumber) -> Result<()> {
        let (mut is_there, mut status) = (0, MpiStatus::default());
        let (source, tag) = (A::ANY_SOURCE, A::ANY_TAG);
        // SAFETY: the caller's promise.
        let code =
            unsafe { (self.functions.probe_only)(source, tag, Self::handle(communicator), &mut is_there, &mut status) };
        self.check("MPI_Iprobe", code)
    }

    unsafe fn receive(&self, probed: &Probed, words: &mut [u64]) -> Result<MpiRequest> {
        let (mut message, mut request) = (Self::handle(probed.message), Self::handle(0));
        let (count, uint64) = (words.len() as c_int, Self::handle(self.constants.uint64));
        // SAFETY: the caller's promise.
        let code = unsafe { (self.functions.receive)(words.as_mut_ptr(), count, uint64, &mut message, &mut request) };
        self.check("MPI_Imrecv", code)?;
        Ok(MpiRequest(request.number()))
    }

    unsafe fn has_ended(&self, request: &mut MpiRequest) -> Result<bool> {
        let (mut handle, mut flag, mut status) = (Self::handle(request.0), 0, MpiStatus::default());
        // SAFETY: the caller's promise.
        let code = unsafe { (self.functions.test)(&mut handle, &mut flag, &mut status) };
        request.0 = handle.number();
        self.check("MPI_Test", code)?;
        Ok(flag != 0)
    }
}
