//! Prints the folder of the stand-ins, for tests that are no Rust programs.

fn main() {
    println!("{}", fake_gpu::library_dir(fake_gpu::Variant::Current).display());
}
