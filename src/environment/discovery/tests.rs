use std::cell::OnceCell;
use std::ffi::OsString;

use super::rendezvous_point::HYDRA_PROXY;
use super::search::Ancestor;
use super::*;
use crate::error::error;

impl System {
    fn new(variables: &[(&str, &str)]) -> Self {
        let variables = variables.iter().map(|(name, value)| (OsString::from(name), OsString::from(value)));
        System { variables: variables.collect(), ancestors: OnceCell::from(Vec::new()) }
    }

    /// The same below a process that was started with these variables.
    fn below(mut self, name: &str, variables: Option<&[(&str, &str)]>) -> Self {
        let lines = |variables: &[(&str, &str)]| {
            variables.iter().flat_map(|(name, value)| format!("{name}={value}\0").into_bytes()).collect()
        };
        let ancestors = self.ancestors.get_mut().expect("`new` has set them");
        let (name, pid) = (name.to_owned(), 100 + ancestors.len() as u32);
        ancestors.push(Ancestor { pid, name, start_time: 5, variables: variables.map(lines) });
        self
    }
}

fn find(given: &CallerValues, variables: &[(&str, &str)]) -> Result<Discovery> {
    discover(given, &System::new(variables).below("sh", None).below(HYDRA_PROXY, None))
}

fn message(given: &CallerValues, variables: &[(&str, &str)]) -> String {
    find(given, variables).expect_err("something is wrong").to_string()
}

const MASTER: [(&str, &str); 2] = [("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "29500")];

#[test]
fn every_launcher_is_understood() {
    type Case<'a> = (&'a [(&'a str, &'a str)], Launcher, [u32; 4]);
    let cases: [Case<'_>; 5] = [
        (
            &[
                ("RANK", "3"),
                ("WORLD_SIZE", "8"),
                ("LOCAL_RANK", "1"),
                ("LOCAL_WORLD_SIZE", "2"),
                ("MASTER_ADDR", "localhost"),
                ("MASTER_PORT", "1"),
                ("OMPI_COMM_WORLD_RANK", "0"),
            ],
            Launcher::Torch,
            [3, 8, 1, 2],
        ),
        (
            &[("TRT_MY_RANK", "1"), ("TRT_WORLD_SIZE", "2"), ("TRT_NCCL_ID_FILE", "/tmp/id")],
            Launcher::TensorRt,
            [1, 2, 1, 2],
        ),
        (
            &[
                ("OMPI_COMM_WORLD_RANK", "5"),
                ("OMPI_COMM_WORLD_SIZE", "6"),
                ("OMPI_COMM_WORLD_LOCAL_RANK", "2"),
                ("OMPI_COMM_WORLD_LOCAL_SIZE", "6"),
                ("PMIX_NAMESPACE", "77"),
            ],
            Launcher::OpenMpi,
            [5, 6, 2, 6],
        ),
        (
            &[("PMI_RANK", "1"), ("PMI_SIZE", "4"), ("MPI_LOCALRANKID", "1"), ("MPI_LOCALNRANKS", "4")],
            Launcher::Pmi,
            [1, 4, 1, 4],
        ),
        (
            &[
                ("SLURM_PROCID", "2"),
                ("SLURM_NTASKS", "4"),
                ("SLURM_LOCALID", "0"),
                ("SLURM_JOB_ID", "9"),
                ("SLURM_STEP_ID", "0"),
            ],
            Launcher::Slurm,
            [2, 4, 0, 4],
        ),
    ];
    for (variables, launcher, [rank, world_size, local_rank, local_world_size]) in cases {
        let found = find(&CallerValues::default(), variables).unwrap_or_else(|e| panic!("{launcher}: {e}"));
        assert_eq!(found.launcher, launcher);
        let numbers = (found.rank.0, found.world_size, found.local_rank, found.local_world_size);
        assert_eq!(numbers, (rank, world_size, local_rank, local_world_size), "{launcher}");
        assert!(found.sources.contains_key("rendezvous"));
    }
}

#[test]
fn explicit_values_come_first_and_need_only_a_rendezvous_point() {
    let given = CallerValues { rank: Some(1), world_size: Some(2), ..CallerValues::default() };
    let mut variables = MASTER.to_vec();
    variables.extend([("RANK", "7"), ("WORLD_SIZE", "9")]);
    let found = find(&given, &variables).expect("complete");
    assert_eq!((found.launcher, found.rank, found.world_size), (Launcher::Explicit, Rank(1), 2));
    assert_eq!(found.sources["rank"], "given by the caller");
    assert_eq!(found.sources["rendezvous"], "MASTER_ADDR, MASTER_PORT");
}

#[test]
fn a_job_that_the_caller_names_needs_no_rendezvous_point() {
    let given = CallerValues { rank: Some(0), world_size: Some(2), job: Some("a".into()), ..CallerValues::default() };
    for variables in [&[][..], &MASTER[..]] {
        let found = find(&given, variables).expect("complete");
        assert_eq!((found.rendezvous, &*found.job), (None, "job a"));
        assert_eq!(found.sources["rendezvous"], "given by the caller");
    }
}

#[test]
fn loopback_names_are_one_and_jobs_are_apart() {
    let job = |host: &str, run: &str| {
        let variables = [
            ("RANK", "0"),
            ("WORLD_SIZE", "1"),
            ("MASTER_ADDR", host),
            ("MASTER_PORT", "5"),
            ("TORCHELASTIC_RUN_ID", run),
        ];
        find(&CallerValues::default(), &variables).expect("complete").job
    };
    assert_eq!(job("localhost", "a"), job("127.0.0.1", "a"));
    assert_eq!(job("::1", "a"), job("[::1]", "a"));
    assert_ne!(job("localhost", "a"), job("localhost", "b"));
    let late = |local: &[(&str, &str)]| {
        let variables = [("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "5")];
        let found = find(&CallerValues::default(), &[&variables, local].concat()).expect("complete");
        found.explain_late(error!(DeadlineExceeded, "late")).to_string()
    };
    assert!(late(&[]).starts_with("late; MASTER_ADDR is the loopback of each machine"));
    assert_eq!(late(&[("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "2")]), "late");
    assert_ne!(job("10.0.0.1", "a"), job("localhost", "a"));
}

#[test]
fn each_has_its_rendezvous_point() {
    let at = |variables: &[(&str, &str)]| find(&CallerValues::default(), variables).map(|found| found.rendezvous);
    let ranks = [("RANK", "0"), ("WORLD_SIZE", "4")];
    let remote = [ranks.as_slice(), &[("MASTER_ADDR", "node7"), ("MASTER_PORT", "29500")]].concat();
    let node7 = |port| Some(Endpoint::Tcp { host: "node7".to_owned(), port });
    assert_eq!(at(&remote).expect("complete"), node7(29501));
    let settable = [remote.as_slice(), &[("DCL_RENDEZVOUS_PORT", "4000")]].concat();
    assert_eq!(at(&settable).expect("complete"), node7(4000));
    assert_eq!(at(&[ranks.as_slice(), &MASTER].concat()).expect("complete"), None);
    let trt = [("TRT_MY_RANK", "1"), ("TRT_WORLD_SIZE", "2"), ("TRT_NCCL_ID_FILE", "/tmp/id")];
    assert_eq!(at(&trt).expect("complete"), Some(Endpoint::File("/tmp/id".into())));
    let spread = [
        ("OMPI_COMM_WORLD_RANK", "5"),
        ("OMPI_COMM_WORLD_SIZE", "6"),
        ("OMPI_COMM_WORLD_LOCAL_SIZE", "3"),
        ("PMIX_NAMESPACE", "77"),
    ];
    assert_eq!(at(&spread).expect("two machines"), Some(Endpoint::Mpi("Open MPI")));
    let told = [&spread[..2], &[("PMIX_NAMESPACE", "77"), ("DCL_HOST_ID", "a")]].concat();
    assert_eq!(at(&told).expect("a machine"), Some(Endpoint::Mpi("Open MPI")));
    assert_eq!(at(&[&spread[..2], &[("PMIX_NAMESPACE", "77")]].concat()).expect("one machine"), None);
    let over_mpi = CallerValues { over_mpi: true, ..CallerValues::default() };
    let asked = |variables: &[(&str, &str)]| find(&over_mpi, variables).expect("complete").rendezvous;
    assert_eq!(asked(&ranks), Some(Endpoint::Mpi("torchrun")));
    assert_eq!(asked(&remote), node7(29501));
    let torch = [&ranks[..], &[("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "2")]].concat();
    assert_eq!(
        at(&torch).expect_err("two machines").to_string(),
        "launcher torchrun: the ranks are on several machines (LOCAL_WORLD_SIZE is 2, and WORLD_SIZE is 4), and do not meet by \
         the job's name; set MASTER_ADDR and MASTER_PORT"
    );
}

#[test]
fn everything_missing_or_contradictory_is_told_at_once() {
    let none = CallerValues::default();
    assert_eq!(
        message(&none, &[]),
        "no launcher started this process: rank is not given, and none of RANK, TRT_MY_RANK, OMPI_COMM_WORLD_RANK, \
         PMI_RANK, SLURM_PROCID is set; world_size is not given, and none of WORLD_SIZE, TRT_WORLD_SIZE, \
         OMPI_COMM_WORLD_SIZE, PMI_SIZE, SLURM_NTASKS is set; there is no rendezvous point: MASTER_ADDR and MASTER_PORT not \
         set; start the ranks by a launcher, such as `distcollective launch -n 2 -- PROGRAM`"
    );
    let half = CallerValues { rank: Some(1), ..CallerValues::default() };
    let text = message(&half, &[]);
    let caller = "without a launcher: world_size is not given, and none of WORLD_SIZE, ";
    assert!(text.starts_with(caller) && !text.contains("PROGRAM"), "{text}");
    assert_eq!(
        message(&none, &[("RANK", "one"), ("MASTER_ADDR", "x"), ("MASTER_PORT", "70000")]),
        "launcher torchrun: RANK is \"one\", which is not a number; WORLD_SIZE is not set; MASTER_PORT is \"70000\", which \
         is not a port; set what is missing, or unset RANK if no launcher started this process"
    );
    assert_eq!(
        message(&none, &[&MASTER[..], &[("TRT_WORLD_SIZE", "2")]].concat()),
        "launcher TensorRT's sample: TRT_MY_RANK is not set; set what is missing, or unset TRT_WORLD_SIZE if no launcher \
         started this process"
    );
    assert_eq!(
        message(&none, &[("TRT_MY_RANK", "2"), ("TRT_WORLD_SIZE", "2")]),
        "launcher TensorRT's sample: TRT_MY_RANK is 2, which is not one of 2: TRT_WORLD_SIZE is 2; there is no rendezvous point: MASTER_ADDR and MASTER_PORT (or \
         TRT_NCCL_ID_FILE) not set"
    );
    let restricted = CallerValues { launcher: Some(Launcher::Slurm), ..CallerValues::default() };
    let mut variables = MASTER.to_vec();
    variables.extend([("RANK", "0"), ("WORLD_SIZE", "1")]);
    assert_eq!(message(&restricted, &variables), "launcher SLURM: SLURM_PROCID is not set; SLURM_NTASKS is not set");
}

/// Launcher, rank, world size, local rank, local world size, rendezvous point and job; or what is
/// wrong.
fn found(system: &System) -> String {
    match discover(&CallerValues::default(), system) {
        Err(error) => error.to_string(),
        Ok(d) => {
            assert_eq!(launcher_of(system), Some(d.launcher));
            let numbers = [d.rank.0, d.world_size, d.local_rank, d.local_world_size];
            format!("{} {numbers:?} {:?} {}", d.launcher, d.rendezvous, d.job)
        }
    }
}

fn srun<'a>(more: &[(&'a str, &'a str)]) -> System {
    let step = [
        ("SLURM_PROCID", "3"),
        ("SLURM_NTASKS", "4"),
        ("SLURM_LOCALID", "1"),
        ("SLURM_NODEID", "1"),
        ("SLURM_JOB_ID", "9"),
        ("SLURM_STEP_ID", "0"),
    ];
    System::new(&[&step[..], more].concat())
}

const MASTER_ELSEWHERE: [(&str, &str); 2] = [("MASTER_ADDR", "node7"), ("MASTER_PORT", "1")];

#[test]
fn slurm_says_how_ranks_are_spread_over_machines() {
    let over_mpi = |local: u32| format!("SLURM [3, 4, 1, {local}] Some(Mpi(\"SLURM\")) MPI ");
    for name in ["SLURM_STEP_NUM_NODES", "SLURM_NNODES"] {
        let spread = [(name, "2"), ("SLURM_NTASKS_PER_NODE", "2"), ("PMIX_RANK", "3")];
        assert_eq!(found(&srun(&spread)), over_mpi(2));
        assert!(
            found(&srun(&spread[..2])).ends_with("or give srun the --mpi of the ranks' MPI"),
            "{}",
            found(&srun(&spread[..2]))
        );
        let unknown = format!(
            "launcher SLURM: {name} is 2, and neither SLURM_STEP_TASKS_PER_NODE nor SLURM_NTASKS_PER_NODE says how many \
             ranks this machine has"
        );
        assert!(found(&srun(&[(name, "2")])).starts_with(&unknown), "{}", found(&srun(&[(name, "2")])));
        assert_eq!(found(&srun(&[&[(name, "2")][..], &MASTER_ELSEWHERE].concat())), unknown);
    }
    // The allocation has more machines than the step.
    let one = srun(&[("SLURM_STEP_NUM_NODES", "1"), ("SLURM_NNODES", "2")]);
    assert_eq!(found(&one), "SLURM [3, 4, 1, 4] None SLURM_JOB_ID,SLURM_STEP_ID=9,0");
    let at = MASTER_ELSEWHERE;
    for (tasks, local) in [("2(x2)", 2), ("1,3", 3), ("2,2(x1)", 2)] {
        let spread =
            [("SLURM_STEP_NUM_NODES", "2"), ("SLURM_STEP_TASKS_PER_NODE", tasks), ("SLURM_NTASKS_PER_NODE", "7")];
        let of_mpi = [&spread[..], &[("PMI_RANK", "3")]].concat();
        assert_eq!(found(&srun(&of_mpi)), over_mpi(local), "{tasks}");
        let expected = format!(
            "SLURM [3, 4, 1, {local}] Some(Tcp {{ host: \"node7\", port: 2 }}) node7:1//SLURM_JOB_ID,SLURM_STEP_ID=9,0"
        );
        assert_eq!(found(&srun(&[&spread[..], &at].concat())), expected, "{tasks}");
    }
    let nodes = [("SLURM_STEP_NUM_NODES", "2"), ("SLURM_NTASKS_PER_NODE", "2")];
    let at_home = [&[("MASTER_ADDR", "localhost"), ("MASTER_PORT", "1")][..], &nodes].concat();
    assert_eq!(
        found(&srun(&at_home)),
        "launcher SLURM: MASTER_ADDR is localhost, which every machine has for itself, and the ranks are on several \
         machines (SLURM_STEP_NUM_NODES is 2)"
    );
    for (tasks, mistake) in [
        ("2(x3)", "SLURM_STEP_TASKS_PER_NODE is \"2(x3)\", which is 6 ranks, and SLURM_NTASKS is 4"),
        ("4", "SLURM_NODEID is 1, and SLURM_STEP_TASKS_PER_NODE is \"4\", which has no such machine"),
        ("2(x2", "SLURM_STEP_TASKS_PER_NODE is \"2(x2\", which is not a list of numbers such as \"2(x3),1\""),
        ("", "SLURM_STEP_TASKS_PER_NODE is \"\", which is not a list of numbers such as \"2(x3),1\""),
        ("4294967295(x4294967295)", "which is 18446744065119617025 ranks, and SLURM_NTASKS is 4"),
    ] {
        let message = found(&srun(&[("SLURM_STEP_TASKS_PER_NODE", tasks)]));
        assert!(message.starts_with("launcher SLURM: ") && message.contains(mistake), "{message}");
    }
}

#[test]
fn pmi_from_srun_is_slurm_and_pmi_from_mpirun_is_not() {
    let pmi = [("PMI_RANK", "3"), ("PMI_SIZE", "4"), ("SLURM_STEP_NUM_NODES", "1")];
    assert_eq!(found(&srun(&pmi)), "SLURM [3, 4, 1, 4] None SLURM_JOB_ID,SLURM_STEP_ID=9,0");
    // mpirun in a batch script; the variables of the script's own step may happen to be the
    // same on one rank.
    let mpirun = [&pmi[..], &[("MPI_LOCALRANKID", "3"), ("MPI_LOCALNRANKS", "4")]].concat();
    let mpirun = srun(&mpirun).below("sh", None).below(HYDRA_PROXY, None);
    assert_eq!(found(&mpirun), "PMI (MPICH, Intel MPI) [3, 4, 3, 4] None hydra_pmi_proxy=101,5");
    let elsewhere = System::new(&pmi).below("sh", None).below("another", None);
    assert_eq!(
        found(&elsewhere),
        "launcher PMI (MPICH, Intel MPI): there is no rendezvous point: MASTER_ADDR and MASTER_PORT are not set, no variable of \
         PMI names the job, and no process hydra_pmi_proxy started this one"
    );
}

const TORCH: [(&str, &str); 4] = [("RANK", "0"), ("WORLD_SIZE", "1"), MASTER[0], MASTER[1]];
const OPEN_MPI: [(&str, &str); 3] =
    [("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "2"), ("PMIX_NAMESPACE", "77")];

#[test]
fn a_launcher_of_which_one_variable_is_set_hides_no_complete_one() {
    for stray in [("WORLD_SIZE", "8"), ("RANK", "0"), ("TRT_WORLD_SIZE", "8")] {
        let variables = [&[stray][..], &OPEN_MPI].concat();
        assert_eq!(found(&System::new(&variables)), "Open MPI [1, 2, 1, 2] None PMIX_NAMESPACE=77");
    }
    assert_eq!(launcher_of(&System::new(&[("WORLD_SIZE", "8")])), Some(Launcher::Torch));
}

#[test]
fn our_launcher_is_not_taken_for_torchrun() {
    let ours = [&TORCH[..], &[("DCL_LAUNCH_SOCKET", "name")]].concat();
    assert_eq!(found(&System::new(&ours)), "distcollective launch [0, 1, 0, 1] None loopback:29500/");
    assert_eq!(launcher_of(&System::new(&ours)), Some(Launcher::DistCollective));
    // torchrun as a rank of ours.
    let inner_torchrun = [&ours[..], &[("TORCHELASTIC_RUN_ID", "none")]].concat();
    assert!(found(&System::new(&inner_torchrun)).starts_with("torchrun [0, 1, 0, 1]"));
}

#[test]
fn of_launchers_that_disagree_the_inner_one_counts() {
    let both = [&TORCH[..], &OPEN_MPI].concat();
    let made = || System::new(&both);
    // Shells and mpirun's own processes may lie between.
    let inner_mpirun = made().below("sh", Some(&both)).below("mpirun", Some(&TORCH)).below("launcher", Some(&[]));
    assert_eq!(found(&inner_mpirun), "Open MPI [1, 2, 1, 2] None loopback:29500//PMIX_NAMESPACE=77");
    let inner_torchrun = made().below("torchrun", Some(&OPEN_MPI)).below("mpirun", Some(&[]));
    assert_eq!(found(&inner_torchrun), "torchrun [0, 1, 0, 1] None loopback:29500/");
    // torchrun replaces what was there before.
    let replaced = [&[("RANK", "1"), ("WORLD_SIZE", "2")][..], &OPEN_MPI].concat();
    let replaced = made().below("torchrun", Some(&replaced)).below("mpirun", Some(&[]));
    assert!(found(&replaced).starts_with("torchrun [0, 1, 0, 1]"));
    for unclear in [
        made(),
        made().below("sh", Some(&both)),
        made().below("sh", Some(&both)).below("sh", Some(&[])),
        made().below("sh", None).below("mpirun", Some(&TORCH)),
    ] {
        assert_eq!(
            found(&unclear),
            "launcher torchrun: RANK is \"0\" and WORLD_SIZE \"1\", but OMPI_COMM_WORLD_RANK is \"1\" and \
             OMPI_COMM_WORLD_SIZE \"2\": torchrun and Open MPI disagree, and no parent process shows which of them runs \
             inside the other; unset the variables of the one that does not count"
        );
    }
    // Those that agree, and an allocation, are no contradiction.
    let equal = [&[("RANK", "1"), ("WORLD_SIZE", "2"), MASTER[0], MASTER[1]][..], &OPEN_MPI].concat();
    assert!(found(&System::new(&equal)).starts_with("torchrun [1, 2, 1, 2]"));
    assert!(found(&srun(&TORCH)).starts_with("torchrun [0, 1, 0, 1]"));
    assert!(found(&srun(&OPEN_MPI)).starts_with("Open MPI [1, 2, 1, 2]"));
    let torchrun_under_pmi2 = [&TORCH[..], &[("PMI_RANK", "3"), ("PMI_SIZE", "4")]].concat();
    assert!(found(&srun(&torchrun_under_pmi2)).starts_with("torchrun [0, 1, 0, 1]"));
}

#[test]
fn local_numbers_fit_the_world() {
    let local = |rank: &'static str, size: &'static str| {
        let mut variables = [&TORCH[..], &[("LOCAL_RANK", rank)]].concat();
        variables[1].1 = "2";
        if !size.is_empty() {
            variables.push(("LOCAL_WORLD_SIZE", size));
        }
        found(&System::new(&variables))
    };
    let begin = "launcher torchrun: ";
    assert_eq!(
        local("0", "4"),
        format!("{begin}LOCAL_WORLD_SIZE is 4, and WORLD_SIZE is 2: more ranks on this machine than there are")
    );
    assert_eq!(local("1", "1"), format!("{begin}LOCAL_RANK is 1, which is not one of 1: LOCAL_WORLD_SIZE is 1"));
    assert_eq!(local("5", ""), format!("{begin}LOCAL_RANK is 5, which is not one of 2: WORLD_SIZE is 2"));
}

#[test]
fn what_is_not_utf_8_is_no_less_there() {
    use std::os::unix::ffi::OsStringExt;
    let with = |name: &str, variables: &[(&str, &str)]| {
        let mut system = System::new(variables);
        system.variables.insert(name.into(), OsString::from_vec(b"a\xff".to_vec()));
        system
    };
    for name in ["MASTER_ADDR", "DCL_JOB_ID"] {
        let message = found(&with(name, &TORCH));
        assert_eq!(message, format!("launcher torchrun: {name} is \"a\\xFF\", which is not UTF-8"));
    }
    assert_eq!(found(&with("RANK", &TORCH)), "launcher torchrun: RANK is \"a\\xFF\", which is not a number");
    let file = with("TRT_NCCL_ID_FILE", &[("TRT_MY_RANK", "0"), ("TRT_WORLD_SIZE", "1")]);
    assert!(found(&file).contains("File(\"a\\xFF\")"), "{}", found(&file));
}
