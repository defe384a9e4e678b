//! Libraries that are absent, too old or without a symbol, and the counts of the test libraries.

use std::ffi::{CStr, CString, c_char};
use std::time::{Duration, Instant};

use distcollective::comm::{BackendKind, NcclId};
use distcollective::tensor::{bf16, f16};
use distcollective::{Communicator, ReduceOperation};
use fake_gpu::Variant;
use libloading::{Library, Symbol};

use super::{Child, TIMEOUT, needs_test_libraries, on_gpus};

/// How many GPUs the test driver has.
const DEVICES: usize = 8;

/// Plays a role in a child.
pub fn play(name: &str, ranks: u32) {
    match name {
        "refused" => println!(
            "{}",
            Communicator::builder()
                .backend(BackendKind::Nccl)
                .timeout(TIMEOUT)
                .in_process(ranks)
                .expect_err("something is missing")
        ),
        "integers" => on_gpus(ranks, |communicator| communicator.all_reduce(&mut [1i32], ReduceOperation::Avg)),
        "average" => on_gpus(ranks, |communicator| {
            let error = communicator.all_reduce(&mut [1f32], ReduceOperation::Avg).expect_err("there is no compiler");
            println!("{error}");
            Ok(())
        }),
        "averages" => averages(ranks),
        "auto" => match Communicator::builder().backend(BackendKind::Auto).timeout(TIMEOUT).in_process(2) {
            Ok(communicators) => println!("on {}", communicators[0].backend()),
            Err(error) => println!("{error}"),
        },
        "id" => {
            let id = NcclId::new().expect("an id");
            assert_eq!(NcclId::from_bytes(id.as_bytes()).expect("128 bytes"), id);
            assert!(NcclId::from_bytes(&[0; 127]).is_err());
        }
        _ => panic!("{name} is no role"),
    }
}

/// One of the test libraries, as the child has it.
struct Fake(Library);

impl Fake {
    fn open(name: &str) -> Self {
        // SAFETY: the library is loaded already.
        Fake(unsafe { Library::new(name) }.expect("a test library"))
    }

    fn live(&self, function: &str, kind: &str) -> usize {
        self.try_live(function, kind).expect("a function of the test library")
    }

    fn try_live(&self, function: &str, kind: &str) -> Option<usize> {
        let kind = CString::new(kind).expect("no zero");
        // SAFETY: the function has this type.
        unsafe {
            let live: Symbol<'_, unsafe extern "C" fn(*const c_char) -> usize> = self.0.get(function).ok()?;
            Some(live(kind.as_ptr()))
        }
    }
}

/// How often the program has called a function of the driver.
pub fn cuda_calls(function: &str) -> usize {
    Fake::open("libcuda.so.1").live("fake_cuda_calls", function)
}

/// How many objects of this kind the driver has.
pub fn cuda_live(kind: &str) -> usize {
    Fake::open("libcuda.so.1").live("fake_cuda_live", kind)
}

/// How many pieces of memory that can be mapped the driver has, if it is the fake one.
pub fn device_memory() -> Option<usize> {
    Fake::open("libcuda.so.1").try_live("fake_cuda_live", "memory handle")
}

/// How many objects of this kind NCCL has.
pub fn nccl_live(kind: &str) -> usize {
    Fake::open("libnccl.so.2").live("fake_nccl_live", kind)
}

/// How often the program has called a function of NCCL.
pub fn nccl_calls(function: &str) -> usize {
    Fake::open("libnccl.so.2").live("fake_nccl_calls", function)
}

/// Averages of floats, twice. Among a power of two of ranks NCCL makes them without a kernel: its
/// reduction is made once for each type.
fn averages(ranks: u32) {
    on_gpus(ranks, |communicator| {
        let n = communicator.world_size() as f32;
        let rank = communicator.rank().0 as f32;
        let average = (n - 1.0) / 2.0;
        for _ in 0..2 {
            let (mut x, mut y, mut z) = ([rank; 3], [f16::from_f32(rank); 3], [bf16::from_f32(rank); 3]);
            communicator.all_reduce(&mut x, ReduceOperation::Avg)?;
            communicator.all_reduce(&mut y, ReduceOperation::Avg)?;
            communicator.all_reduce(&mut z, ReduceOperation::Avg)?;
            assert_eq!((x, y.map(f16::to_f32), z.map(bf16::to_f32)), ([average; 3], [average; 3], [average; 3]));
        }
        Ok(())
    });
    let is_nccls = ranks.is_power_of_two();
    assert_eq!(nccl_calls("ncclRedOpCreatePreMulSum"), if is_nccls { 3 * ranks as usize } else { 0 });
    assert_eq!(cuda_calls("cuLaunchKernel") == 0, is_nccls);
}

/// Checks that the program has broken no rule of NCCL's, and that everything it made is freed.
/// Helper threads may still be freeing. After a fault some things cannot be freed, so then only the
/// rules are checked.
pub fn assert_nothing_is_left(after_a_fault: bool) {
    let (cuda, nccl) = (Fake::open("libcuda.so.1"), Fake::open("libnccl.so.2"));
    // SAFETY: the functions have these types.
    let violations = unsafe {
        let count: Symbol<'_, unsafe extern "C" fn() -> usize> =
            nccl.0.get("fake_nccl_violations").expect("a function");
        let text: Symbol<'_, unsafe extern "C" fn(usize) -> *const c_char> =
            nccl.0.get("fake_nccl_violation").expect("a function");
        (0..count()).map(|i| CStr::from_ptr(text(i)).to_string_lossy().into_owned()).collect::<Vec<_>>()
    };
    assert!(violations.is_empty(), "{violations:#?}");
    if after_a_fault {
        return;
    }
    let left = || {
        let of_cuda = ["device memory", "graph", "graph exec"];
        let of_nccl = ["communicator", "memory", "window"];
        let of_cuda = of_cuda.into_iter().map(|kind| (kind, cuda.live("fake_cuda_live", kind)));
        let of_nccl = of_nccl.into_iter().map(|kind| (kind, nccl.live("fake_nccl_live", kind)));
        // Each device keeps a stream for copies, and the events of its two pieces of pinned memory.
        let streams = ("stream", cuda.live("fake_cuda_live", "stream").saturating_sub(DEVICES));
        let events = ("event", cuda.live("fake_cuda_live", "event").saturating_sub(4 * DEVICES));
        of_cuda.chain(of_nccl).chain([streams, events]).filter(|(_, count)| *count > 0).collect::<Vec<_>>()
    };
    let end = Instant::now() + Duration::from_secs(5);
    while !left().is_empty() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(left().is_empty(), "not freed: {:?}", left());
}

#[test]
fn the_error_names_what_is_missing() {
    if needs_test_libraries() {
        return;
    }
    for (variant, says) in [
        (Variant::NoDriver, "CUDA's driver, libcuda.so or libcuda.so.1, is not to be found"),
        (Variant::NoNccl, "NCCL is not to be found; tried libnccl.so.2"),
        (Variant::Ancient, "libnccl.so.2 is NCCL 2.18.3; 2.19.0 or newer is needed"),
    ] {
        let text = Child::new("libraries refused", 1).on(variant).passes();
        assert!(text.contains(says), "{text}");
    }
    let text = Child::new("libraries refused", 1).with(&[("FAKE_CUDA_DEVICES", "0")]).passes();
    assert!(text.contains("cuInit: CUDA says CUDA_ERROR_NO_DEVICE"), "{text}");
    let text = Child::new("libraries refused", 2).with(&[("FAKE_CUDA_DEVICES", "1")]).passes();
    assert!(text.contains("2 ranks on 1 GPU: NCCL has one rank a GPU; from 2.30 on several share it"), "{text}");
    // Calls that need no kernel work without NVRTC.
    Child::new("libraries integers", 2).on(Variant::NoNvrtc).passes();
    let text = Child::new("libraries average", 3).on(Variant::NoNvrtc).passes();
    assert!(
        text.contains("CUDA's run-time compiler, libnvrtc.so or libnvrtc.so.13 or .12, is not to be found"),
        "{text}"
    );
    let text = Child::new("libraries average", 3).on(Variant::Nvrtc13).with(&[("FAKE_CUDA_VERSION", "12040")]).passes();
    assert!(
        text.contains("is of version 13.0, and the driver takes up to 12.4; install the compiler of CUDA 12"),
        "{text}"
    );
    let text = Child::new("libraries average", 3).with(&[("FAKE_NVRTC", "fail")]).passes();
    assert!(text.contains("nvrtcCompileProgram: NVRTC says"), "{text}");
}

/// The compiler of the driver's version is taken; and where none knows the GPU, PTX.
#[test]
fn kernels_are_compiled_for_the_driver_and_the_gpu() {
    if needs_test_libraries() {
        return;
    }
    for (name, value) in [("FAKE_CUDA_VERSION", "12040"), ("FAKE_CUDA_SM", "130"), ("FAKE_CUDA_SM", "105")] {
        Child::new("libraries averages", 3).with(&[(name, value)]).passes();
    }
}

#[test]
fn averages_among_a_power_of_two_of_ranks_are_made_by_nccl() {
    if needs_test_libraries() {
        return;
    }
    for ranks in [2, 3, 4] {
        Child::new("libraries averages", ranks).passes();
    }
}

#[test]
fn auto_takes_nccl_where_there_is_a_gpu_for_each_rank_and_says_what_is_missing() {
    if needs_test_libraries() {
        return;
    }
    let on =
        |variant, devices| Child::new("libraries auto", 2).on(variant).with(&[("FAKE_CUDA_DEVICES", devices)]).passes();
    assert!(on(Variant::Current, "2").contains("on nccl"));
    assert!(on(Variant::Current, "1").contains("on host"));
    assert!(on(Variant::Current, "0").contains("on host"));
    assert!(on(Variant::NoDriver, "2").contains("on host"));
    assert!(on(Variant::NoNvrtc, "2").contains("on nccl"));
    let text = on(Variant::NoNccl, "2");
    assert!(text.contains("NCCL is not to be found; tried libnccl.so.2"), "{text}");
    assert!(text.contains("the backend \"host\" does the same without GPUs"), "{text}");
}

/// NVIDIA's own library has every function that this library calls, and makes ids. It needs no GPU
/// for that.
#[test]
fn nccl_itself_answers() {
    // SAFETY: NCCL may be loaded at any time.
    let Ok(nccl) = (unsafe { Library::new("libnccl.so.2") }) else {
        assert!(std::env::var_os("DCL_REQUIRE_PEERS").is_none(), "libnccl.so.2 is required here");
        println!("skipped: libnccl.so.2 is not there");
        return;
    };
    let declared = include_str!("../../../src/comm/nccl/sys.rs");
    let names: Vec<&str> = declared.split("fn nccl").skip(1).filter_map(|rest| rest.split('(').next()).collect();
    assert!(names.len() >= 30 && names.contains(&"AllReduce"), "{names:?}");
    for name in names {
        // SAFETY: the symbol is only looked for.
        unsafe { nccl.get::<unsafe extern "C" fn()>(format!("nccl{name}")) }
            .unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    let [one, two] = [NcclId::new(), NcclId::new()].map(|id| id.expect("an id"));
    assert_ne!(one, two);
    let mut version = 0;
    // SAFETY: the function writes one number.
    unsafe {
        let get: Symbol<'_, unsafe extern "C" fn(*mut i32) -> i32> = nccl.get("ncclGetVersion").expect("a function");
        assert_eq!(get(&mut version), 0);
    }
    assert!(version >= 21_900, "{version}");
}

#[test]
fn an_id_is_its_bytes() {
    Child::new("libraries id", 1).passes();
}
