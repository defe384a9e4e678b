//! What is logged and listed about ranks that read what they do not write, or take no part.

use distcollective::collective::Partition;
use distcollective::dist_collective::NoRoot;
use distcollective::network::Shuffle;
use distcollective::{
    Communicator, DataType, DistCollective, DistCollectiveLayer, Engine, Network, Rank, ReduceOperation, Result,
};

use crate::ranks::{logged, on_ranks};

fn sum() -> DistCollective<NoRoot> {
    DistCollective::all_reduce(ReduceOperation::Sum)
}

/// x [8] -> the layers, one after the other -> y.
fn chain<const N: usize>(layers: [DistCollectiveLayer; N]) -> Engine {
    let mut network = Network::new();
    let mut tensor = network.add_input("x", DataType::Float32, [8]).expect("an input");
    for layer in layers {
        tensor = network.add(layer, tensor).expect("a layer");
    }
    network.mark_output(tensor, "y").expect("an output");
    network.build().expect("an engine")
}

fn among(groups: &[&[u32]]) -> DistCollective<NoRoot> {
    sum().partition(Partition::new(groups.iter().map(|group| group.iter().copied())))
}

#[test]
fn ranks_that_take_part_in_both_layers_are_no_warning() {
    let reduce = || DistCollective::reduce(ReduceOperation::Sum, Rank(1)).nb_rank(4);
    let cases: [[DistCollectiveLayer; 2]; 5] = [
        // A mesh whose rows and columns cover every rank.
        [among(&[&[0, 1], &[2, 3]]).into(), among(&[&[0, 2], &[1, 3]]).into()],
        [among(&[&[0, 1], &[2, 3]]).into(), sum().nb_rank(4).into()],
        // The other ranks skip both.
        [sum().group([Rank(1), Rank(2)]).into(), sum().group([Rank(2), Rank(1)]).into()],
        [among(&[&[0, 1], &[2, 3]]).into(), sum().group([Rank(1), Rank(2)]).into()],
        // Only the root writes, and only the root reads.
        [reduce().into(), DistCollective::broadcast(Rank(1)).nb_rank(4).into()],
    ];
    for (case, layers) in cases.into_iter().enumerate() {
        assert_eq!(chain(layers).warnings(), [""; 0], "case {case}");
    }
}

#[test]
fn a_rank_that_takes_part_in_one_of_two_layers_is_a_warning() {
    let reads = |reader: &str, writer: &str, rank: u32| {
        [format!(
            "layer {reader} reads the output of layer {writer} on rank {rank}, which does not write it: it reads zeros there"
        )]
    };
    let first = "\"all_reduce_0\" (all_reduce)";
    let second = "\"all_reduce_1\" (all_reduce)";
    assert_eq!(
        chain([sum().group([Rank(0), Rank(1)]).into(), sum().nb_rank(4).into()]).warnings(),
        reads(second, first, 2)
    );
    assert_eq!(
        chain([among(&[&[0, 1], &[4, 3]]).into(), among(&[&[0, 2], &[3, 1]]).into()]).warnings(),
        reads(second, first, 2)
    );
    let reduce = DistCollective::reduce(ReduceOperation::Sum, Rank(1)).nb_rank(2);
    assert_eq!(
        chain([reduce.into(), DistCollective::broadcast(Rank(0)).nb_rank(2).into()]).warnings(),
        reads("\"broadcast_1\" (broadcast)", "\"reduce_0\" (reduce)", 0)
    );
    // Every rank computes what is no collective. A partition's ranks may be all that there are.
    let mut network = Network::new();
    let x = network.add_input("x", DataType::Float32, [8]).expect("an input");
    let y = network.add(among(&[&[1, 0], &[3, 4]]).named("w".repeat(500)), x).expect("a layer");
    for index in 0..3 {
        let z = network.add_shuffle(y, Shuffle::default()).expect("a layer");
        network.mark_output(z, &format!("z{index}")).expect("an output");
    }
    let engine = network.build().expect("an engine");
    let [warning] = engine.warnings() else { panic!("{:?}", engine.warnings()) };
    assert!(warning.starts_with("layer \"shuffle_1\" (shuffle) (and 2 other layers) reads the output of"), "{warning}");
    assert!(warning.contains("www…www") && warning.len() < 300, "{warning}");
}

#[test]
fn a_rank_that_takes_part_in_nothing_is_told() {
    let engine = chain([sum().group([Rank(2), Rank(0)]).into()]);
    let texts = on_ranks(4, move |communicator: Communicator| {
        logged(|| {
            let set = || -> Result<()> { engine.create_execution_context()?.set_communicator(&communicator) };
            set().expect("it fits");
        })
    });
    for (rank, text) in texts.iter().enumerate() {
        let warning = format!("rank {rank} takes part in no collective of plan");
        let is_told = text.contains("WARN") && text.contains(&warning);
        assert_eq!(is_told, rank % 2 == 1, "rank {rank}: {text}");
    }
    // Without collectives, and in a group of one rank, there is nothing to warn of.
    let alone = chain([DistCollective::all_gather().group([Rank(0)]).into()]);
    let text = logged(|| {
        let communicator = Communicator::builder().in_process(1).expect("a rank").remove(0);
        for engine in [chain([sum().nb_rank(1).into()]), alone] {
            let mut context = engine.create_execution_context().expect("a context");
            context.set_communicator(&communicator).expect("it fits");
        }
    });
    assert!(!text.contains("takes part"), "{text}");
}
