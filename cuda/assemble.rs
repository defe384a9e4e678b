//! Makes one text of the headers in this folder, and reads the list of kernels. Build scripts
//! include this file: the library's, and that of `tests/host_kernels`.

use std::fs;
use std::path::{Path, PathBuf};

type Result<T> = std::result::Result<T, String>;

/// What is needed to compile kernels.
pub struct Sources {
    /// All headers, each once and after those that it includes.
    pub text: String,
    pub kernels: Vec<Kernel>,
}

/// A line of `kernels.list`.
pub struct Kernel {
    /// The line itself: `cast float32 float16`.
    pub entry: String,
    /// The function: `dcl_cast_float32_float16`.
    pub name: String,
    /// The line of source that defines it: `DCL_CAST(dcl_cast_float32_float16, float32, float16)`.
    pub definition: String,
}

impl Sources {
    /// Reads the folder `cuda/`.
    ///
    /// # Errors
    ///
    /// A file that cannot be read; a line of the list that is there twice.
    pub fn read(folder: &Path) -> Result<Self> {
        let entries = fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        let mut headers: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
        headers.retain(|path| path.extension().is_some_and(|extension| extension == "h"));
        headers.sort();
        let mut text = String::new();
        let mut included = Vec::new();
        for header in headers {
            include(&header, &mut text, &mut included)?;
        }
        Ok(Sources { text, kernels: list(&folder.join("kernels.list"))? })
    }
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))
}

/// Appends a header, and first those that it includes.
fn include(header: &Path, text: &mut String, included: &mut Vec<PathBuf>) -> Result<()> {
    if included.iter().any(|other| other == header) {
        return Ok(());
    }
    included.push(header.to_owned());
    let content = read(header)?;
    let name_in = |line: &str| Some(line.strip_prefix("#include \"")?.strip_suffix('"')?.to_owned());
    for name in content.lines().filter_map(name_in) {
        include(&header.with_file_name(name), text, included)?;
    }
    // A compiler's messages name the header and its line.
    let name = header.file_name().unwrap_or_default().to_string_lossy();
    text.push_str(&format!("#line 1 \"{name}\"\n"));
    for line in content.lines() {
        // An empty line in its stead keeps the numbers of lines.
        text.push_str(if name_in(line).is_some() { "" } else { line });
        text.push('\n');
    }
    Ok(())
}

fn list(path: &Path) -> Result<Vec<Kernel>> {
    let mut kernels: Vec<Kernel> = Vec::new();
    for line in read(path)?.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let words: Vec<&str> = line.split(' ').collect();
        let name = format!("dcl_{}", words.join("_"));
        if kernels.iter().any(|other| other.name == name) {
            return Err(format!("{}: {line:?} is there twice", path.display()));
        }
        let arguments = [&[name.as_str()], &words[1..]].concat().join(", ");
        let definition = format!("DCL_{}({arguments})", words[0].to_uppercase());
        kernels.push(Kernel { entry: line.to_owned(), name, definition });
    }
    Ok(kernels)
}
