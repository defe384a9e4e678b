//! What follows from the facts.

use super::diagnosis::Diagnosis;
use super::gpu::Gpu;
use super::host::Host;
use super::probe::Probe;

/// What a container has of `/dev/shm` unless told otherwise.
const SMALL_DEV_SHM: u64 = 64 << 20;

/// Adds the conclusions and the warnings.
pub fn assess(diagnosis: &mut Diagnosis) {
    let (nccl_max_world_size, auto) = backend(diagnosis);
    diagnosis.warnings = warnings_of_host(diagnosis);
    diagnosis.warnings.extend(warnings_of_gpus(diagnosis, nccl_max_world_size));
    diagnosis.conclusions = vec![auto, room(&diagnosis.host)];
    diagnosis.nccl_max_world_size = nccl_max_world_size;
}

/// For how many ranks the backend "auto" is NCCL, and the sentence about it.
fn backend(diagnosis: &Diagnosis) -> (u32, String) {
    let on_host = |obstacle: &str| (0, format!("\"auto\" is the host backend; NCCL cannot be used: {obstacle}"));
    let refused = |problem: &str| (0, format!("\"auto\" is an error, because NCCL cannot be used: {problem}"));
    let (gpus, nccl) = match (&diagnosis.gpus, &diagnosis.driver, &diagnosis.nccl) {
        (Probe::Found(gpus), Probe::Missing { problem }, _) if gpus.is_empty() => return on_host(problem),
        (Probe::Found(gpus), ..) if gpus.is_empty() => return on_host("there is no GPU"),
        (Probe::Missing { problem }, ..) | (.., Probe::Missing { problem }) => return refused(problem),
        (Probe::Found(gpus), _, Probe::Found(nccl)) => (gpus, nccl),
    };
    // Rank 0 has GPU 0, and so on.
    let usable = gpus.iter().take_while(|gpu| gpu.found().is_some()).count();
    if let Probe::Missing { problem } = &gpus[0] {
        return refused(&format!("GPU 0: {problem}"));
    }
    let sentence = match usable {
        1 if nccl.shares_gpus => "\"auto\" is NCCL for any number of ranks, which share the GPU".to_owned(),
        n if nccl.shares_gpus && n == gpus.len() => format!(
            "\"auto\" is NCCL for any number of ranks that are threads, which share the {n} GPUs, and for up to {n} that \
             are processes"
        ),
        n => {
            let ranks = count_of(n, "rank");
            let more = match gpus.get(n) {
                Some(Probe::Missing { problem }) => format!("are an error, because GPU {n} cannot be used: {problem}"),
                _ => "are on the host backend".to_owned(),
            };
            format!("\"auto\" is NCCL for up to {ranks}, each with a GPU of its own; more {more}")
        }
    };
    (usable as u32, sentence)
}

/// How many ranks the host backend is good for.
fn room(host: &Host) -> String {
    let threads = host.threads.map_or("any number of".to_owned(), |threads| format!("up to about {threads}"));
    let processes = host.processes.found().map_or(String::new(), |count| format!(" or about {count} processes"));
    let cores = host
        .cores
        .found()
        .map_or(String::new(), |&cores| format!("; more ranks than the {} take turns", count_of(cores, "core")));
    format!("the host backend takes ranks as {threads} threads{processes}{cores}")
}

/// What is wrong with the machine and the launch, whatever the GPUs.
fn warnings_of_host(diagnosis: &Diagnosis) -> Vec<String> {
    let Diagnosis { host, launch, .. } = diagnosis;
    let mut warnings = Vec::new();
    if let Some(problem) = &launch.problem {
        warnings.push(format!("ranks cannot meet as they were launched: {problem}"));
    }
    warnings.extend_from_slice(&launch.mistakes);
    match (&host.processes, host.cores.found()) {
        (Probe::Missing { problem }, _) => warnings.push(format!("ranks cannot be processes: {problem}")),
        (Probe::Found(processes), Some(&cores)) if (*processes as usize) < cores => {
            let text =
                "so few files may be open that fewer ranks can be processes than there are cores; see `ulimit -n`";
            warnings.push(text.to_owned());
        }
        _ => {}
    }
    warnings
}

/// What is wrong with the GPUs, and with what they are used through.
fn warnings_of_gpus(diagnosis: &Diagnosis, nccl_max_world_size: u32) -> Vec<String> {
    let mut warnings = Vec::new();
    let mut gpus: Vec<(u32, &Gpu)> = Vec::new();
    for (number, gpu) in (0..).zip(diagnosis.gpus.found().into_iter().flatten()) {
        match gpu {
            Probe::Found(gpu) => gpus.push((number, gpu)),
            Probe::Missing { problem } => warnings.push(format!(
                "GPU {number} cannot be used: {problem}. Ranks that are threads would be given it all the same; \
                 CUDA_VISIBLE_DEVICES can leave it out"
            )),
        }
    }
    if let Probe::Missing { problem } = &diagnosis.gpus {
        warnings.push(format!("the GPUs cannot be used: {problem}"));
    }
    if gpus.is_empty() {
        return warnings;
    }
    match &diagnosis.nccl {
        Probe::Missing { .. } => {
            let (verb, them) = if gpus.len() == 1 { ("is", "it") } else { ("are", "them") };
            warnings.push(format!("there {verb} {}, and no NCCL that can use {them}", count_of(gpus.len(), "GPU")));
        }
        Probe::Found(nccl) => {
            warnings.extend(nccl.detours.iter().map(|detour| format!("NCCL {}: {detour}", nccl.version)));
        }
    }
    let old: Vec<String> = gpus.iter().filter(|(_, gpu)| !gpu.info.runs_layers).map(|(n, _)| n.to_string()).collect();
    if let Some((last, first)) = old.split_last() {
        let old = match first {
            [] => format!("GPU {last}"),
            _ => format!("GPUs {} and {last}", first.join(", ")),
        };
        warnings.push(format!(
            "layers of several ranks are refused on {old}: they need compute capability 8.0, or the backend \"host\""
        ));
    }
    let nccl_reduces_float8 = diagnosis.nccl.found().is_some_and(|nccl| nccl.reduces_float8);
    let reduces_float8 = nccl_reduces_float8 && gpus.iter().all(|(_, gpu)| gpu.info.reduces_float8);
    let float8 = if reduces_float8 { "" } else { " and float8" };
    let lost = format!("averages of floats, reductions of bool{float8}, Cast and Shuffle layers fail");
    if diagnosis.nvrtc.found().is_none() {
        warnings.push(format!("without NVRTC {lost} on GPUs"));
    } else {
        let without_kernels = gpus.iter().filter_map(|(number, gpu)| Some((number, gpu.kernel_problem.as_ref()?)));
        warnings.extend(without_kernels.map(|(number, problem)| format!("{lost} on GPU {number}: {problem}")));
    }
    if let Some(&cores) = diagnosis.host.cores.found()
        && cores < gpus.len()
    {
        let (cores, gpus) = (count_of(cores, "core"), gpus.len());
        warnings.push(format!("{cores} for {gpus} GPUs: each rank is driven by a thread of its own"));
    }
    if nccl_max_world_size > 1 && diagnosis.host.dev_shm_bytes.is_some_and(|bytes| bytes <= SMALL_DEV_SHM) {
        let text = "/dev/shm is as small as containers have it unless told otherwise; NCCL needs more between several GPUs \
                    (docker run --shm-size=1g)";
        warnings.push(text.to_owned());
    }
    warnings
}

/// `1 core`, `4 cores`.
fn count_of(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use distcollective::system::NcclInfo;
    use serde_json::json;

    use super::super::gpu::Library;
    use super::super::host::OpenFiles;
    use super::super::launch::Launch;
    use super::*;

    fn missing<T>(problem: &str) -> Probe<T> {
        Probe::Missing { problem: problem.to_owned() }
    }

    fn gpu() -> Gpu {
        let info = json!({
            "name": "A GPU",
            "capability": "9.0",
            "memory_bytes": 1 << 30,
            "bus_id": "0000:01:00.0",
            "multiprocessors": 1,
            "runs_layers": true,
            "reduces_float8": true,
        });
        Gpu { info: serde_json::from_value(info).expect("a GPU"), kernel_problem: None }
    }

    fn nccl() -> NcclInfo {
        let nccl = json!({
            "version": "2.30.7",
            "file": "libnccl.so.2",
            "has_all_to_all": true,
            "has_windows": true,
            "reduces_float8": true,
            "shares_gpus": false,
            "detours": [],
        });
        serde_json::from_value(nccl).expect("NCCL")
    }

    /// A machine of four cores on which nothing is wrong, with these GPUs.
    fn machine(gpus: Vec<Probe<Gpu>>) -> Diagnosis {
        let library = || Probe::Found(Library { version: "13.0".to_owned(), file: None });
        Diagnosis {
            version: "1.0.0",
            commit: "unknown",
            target: "unknown",
            host: Host {
                system: "Linux".to_owned(),
                cores: Probe::Found(4),
                memory_available_bytes: Probe::Found(1 << 30),
                memory_limit_bytes: None,
                dev_shm_bytes: Some(1 << 30),
                open_files: OpenFiles { soft: Some(1024), hard: None },
                threads: Some(1000),
                mappings: None,
                processes: Probe::Found(505),
            },
            launch: Launch {
                launcher: None,
                rank: None,
                world_size: None,
                problem: None,
                mistakes: Vec::new(),
                variables: Default::default(),
            },
            driver: library(),
            gpus: Probe::Found(gpus),
            nvrtc: library(),
            nccl: Probe::Found(nccl()),
            ucx: missing("no UCX"),
            mpi: missing("no MPI"),
            nccl_max_world_size: 0,
            conclusions: Vec::new(),
            warnings: Vec::new(),
        }
    }

    fn sharing(gpus: Vec<Probe<Gpu>>) -> Diagnosis {
        let mut machine = machine(gpus);
        if let Probe::Found(nccl) = &mut machine.nccl {
            nccl.shares_gpus = true;
        }
        machine
    }

    fn assessed(mut diagnosis: Diagnosis) -> Diagnosis {
        assess(&mut diagnosis);
        diagnosis
    }

    #[test]
    fn auto_is_nccl_for_as_many_ranks_as_there_are_gpus_from_the_first_on() {
        let good = || Probe::Found(gpu());
        let bad = || missing("it is ill");
        for (machine, ranks, sentence) in [
            (machine(vec![]), 0, "\"auto\" is the host backend; NCCL cannot be used: there is no GPU"),
            (machine(vec![bad()]), 0, "\"auto\" is an error, because NCCL cannot be used: GPU 0: it is ill"),
            (
                machine(vec![good()]),
                1,
                "\"auto\" is NCCL for up to 1 rank, each with a GPU of its own; more are on the host backend",
            ),
            (
                machine(vec![good(), bad(), good()]),
                1,
                "\"auto\" is NCCL for up to 1 rank, each with a GPU of its own; more are an error, because GPU 1 cannot be \
                 used: it is ill",
            ),
            (
                machine(vec![good(), good()]),
                2,
                "\"auto\" is NCCL for up to 2 ranks, each with a GPU of its own; more are on the host backend",
            ),
            (sharing(vec![good()]), 1, "\"auto\" is NCCL for any number of ranks, which share the GPU"),
            (
                sharing(vec![good(), good()]),
                2,
                "\"auto\" is NCCL for any number of ranks that are threads, which share the 2 GPUs, and for up to 2 that \
                 are processes",
            ),
            (
                Diagnosis { driver: missing("no driver"), nccl: missing("no NCCL"), ..machine(vec![]) },
                0,
                "\"auto\" is the host backend; NCCL cannot be used: no driver",
            ),
            (
                Diagnosis { gpus: missing("it hangs"), ..machine(vec![]) },
                0,
                "\"auto\" is an error, because NCCL cannot be used: it hangs",
            ),
            (
                Diagnosis { nccl: missing("no NCCL"), ..machine(vec![good()]) },
                0,
                "\"auto\" is an error, because NCCL cannot be used: no NCCL",
            ),
            (
                Diagnosis { nvrtc: missing("no NVRTC"), ..machine(vec![good()]) },
                1,
                "\"auto\" is NCCL for up to 1 rank, each with a GPU of its own; more are on the host backend",
            ),
        ] {
            let diagnosis = assessed(machine);
            assert_eq!((diagnosis.nccl_max_world_size, diagnosis.conclusions[0].as_str()), (ranks, sentence));
        }
    }

    #[test]
    fn the_host_backend_says_how_many_ranks_it_takes() {
        let mut machine = machine(vec![]);
        assert_eq!(
            room(&machine.host),
            "the host backend takes ranks as up to about 1000 threads or about 505 processes; more ranks than the 4 cores \
             take turns"
        );
        machine.host.processes = missing("no sockets");
        machine.host.threads = None;
        assert_eq!(
            room(&machine.host),
            "the host backend takes ranks as any number of threads; more ranks than the 4 cores take turns"
        );
        assert_eq!(assessed(machine).warnings, ["ranks cannot be processes: no sockets"]);
    }

    #[test]
    fn what_is_wrong_is_warned_of_and_nothing_else() {
        let good = || Probe::Found(gpu());
        assert!(assessed(machine(vec![])).warnings.is_empty());
        let hangs = assessed(Diagnosis { gpus: missing("it hangs"), ..machine(vec![]) });
        assert_eq!(hangs.warnings, ["the GPUs cannot be used: it hangs"]);
        assert!(assessed(machine(vec![good(), good(), good(), good()])).warnings.is_empty());

        let mut few = machine(vec![good(), missing("it is ill"), good()]);
        few.host.cores = Probe::Found(1);
        few.host.dev_shm_bytes = Some(64 << 20);
        few.launch.problem = Some("RANK is not set".to_owned());
        few.launch.mistakes = vec!["DCL_LOG is \"loud\"".to_owned()];
        let few = assessed(few).warnings;
        assert_eq!(few.len(), 4, "{few:#?}");
        assert_eq!(few[..2], ["ranks cannot meet as they were launched: RANK is not set", "DCL_LOG is \"loud\""]);
        assert!(few[2].starts_with("GPU 1 cannot be used: it is ill. Ranks that are threads"), "{few:#?}");
        assert_eq!(few[3], "1 core for 2 GPUs: each rank is driven by a thread of its own");

        let mut container = machine(vec![good(), good()]);
        container.host.dev_shm_bytes = Some(64 << 20);
        container.host.processes = Probe::Found(3);
        let container = assessed(container).warnings;
        assert_eq!(container.len(), 2, "{container:#?}");
        assert!(container[0].contains("`ulimit -n`") && container[1].starts_with("/dev/shm is as small"));

        let without_kernels = Gpu { kernel_problem: Some("CUDA says no".to_owned()), ..gpu() };
        assert_eq!(
            assessed(machine(vec![good(), Probe::Found(without_kernels)])).warnings,
            ["averages of floats, reductions of bool, Cast and Shuffle layers fail on GPU 1: CUDA says no"]
        );
    }
}
