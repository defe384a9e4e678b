//! What each variant has and lacks.

use libloading::Library;

use crate::child::test_in_child;
use crate::cuda::{self, NO_HANDLE, ok, upload};
use crate::nccl::*;

const LIBRARIES: [&str; 3] = ["libcuda", "libnccl", "libnvrtc"];
const NUMBERS: [&str; 3] = ["1", "2", "13"];

/// Which of the three libraries are in the folder, under both of their names.
fn present(variant: fake_gpu::Variant) -> [bool; 3] {
    let folder = fake_gpu::library_dir(variant);
    std::array::from_fn(|i| {
        let bare = folder.join(format!("{}.so", LIBRARIES[i])).exists();
        assert_eq!(bare, folder.join(format!("{}.so.{}", LIBRARIES[i], NUMBERS[i])).exists());
        bare
    })
}

#[test]
fn some_lack_a_library() {
    use fake_gpu::Variant;
    assert_eq!(present(Variant::Current), [true, true, true]);
    assert_eq!(present(Variant::Nvrtc13), [true, true, true]);
    assert_eq!(present(Variant::Previous), [true, true, true]);
    assert_eq!(present(Variant::Old), [true, true, true]);
    assert_eq!(present(Variant::Ancient), [true, true, true]);
    assert_eq!(present(Variant::NoNvrtc), [true, true, false]);
    assert_eq!(present(Variant::NoNccl), [true, false, true]);
    assert_eq!(present(Variant::NoDriver), [false, true, true]);
}

/// Which of these functions the library in the path lacks.
fn lacking() -> Vec<&'static str> {
    // SAFETY: loading the library runs no code of its own.
    let library = unsafe { Library::new("libnccl.so") }.expect("libnccl.so is in the path");
    let functions = [
        "ncclAlltoAll",
        "ncclGather",
        "ncclScatter",
        "ncclCommWindowRegister",
        "ncclCommWindowDeregister",
        "ncclCommRevoke",
        "ncclMemAlloc",
        "ncclMemFree",
        "ncclCommSplit",
    ];
    // SAFETY: the functions are looked for, not called.
    let lacks = |name: &&str| unsafe { library.get::<fn()>(*name) }.is_err();
    functions.into_iter().filter(lacks).collect()
}

fn version() -> i32 {
    let mut version = 0;
    ok((nccl().version)(&mut version));
    version
}

/// A communicator made with that version's configuration works.
fn reduces() {
    cuda::use_device(0);
    let (mut config, mut communicator, at) = (Config::new(true), NO_HANDLE, upload(&[1.0f32]));
    let mut init = |config: &mut Config| (nccl().init)(&mut communicator, 1, unique_id(), 0, config);
    assert_eq!(init(&mut config), INVALID_ARGUMENT);
    (config.size, config.version) = (48, version() as u32);
    ok(init(&mut config));
    ok((nccl().all_reduce)(at, at, 1, FLOAT32, SUM, communicator, NO_HANDLE));
    cuda::synchronize(NO_HANDLE);
}

test_in_child!(the_current_one_has_all, Strict, &[], || {
    assert_eq!(version(), 23007);
    assert_eq!(lacking(), [""; 0]);
});

test_in_child!(the_previous_one_has_all, Previous, &[], || {
    assert_eq!(version(), 23006);
    assert_eq!(lacking(), [""; 0]);
});

test_in_child!(the_old_one_lacks_some, Old, &[], || {
    assert_eq!(version(), 22105);
    let expected = ["AlltoAll", "Gather", "Scatter", "CommWindowRegister", "CommWindowDeregister", "CommRevoke"];
    assert_eq!(lacking(), expected.map(|name| format!("nccl{name}")));
    reduces();
});

test_in_child!(the_ancient_one_lacks_more, Ancient, &[], || {
    assert_eq!(version(), 21803);
    assert_eq!(lacking()[6..], ["ncclMemAlloc", "ncclMemFree"]);
    reduces();
});

test_in_child!(nccl_tells_that_there_is_no_driver, NoDriver, &[], || {
    let mut communicator = NO_HANDLE;
    assert_eq!(version(), 23007);
    assert_eq!((nccl().init_plain)(&mut communicator, 1, unique_id(), 0), SYSTEM_ERROR);
    assert_eq!(last_error(), "libcuda.so.1 cannot be loaded");
});
