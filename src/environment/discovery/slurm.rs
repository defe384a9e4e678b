//! How srun spreads the ranks over machines.

use super::search::Search;
use crate::util::text::count_of;

/// The number of machines.
const NODE_COUNT: [&str; 2] = ["SLURM_STEP_NUM_NODES", "SLURM_NNODES"];
/// This machine's number.
const NODE: &str = "SLURM_NODEID";
/// The number of ranks on each machine.
const STEP_TASKS: &str = "SLURM_STEP_TASKS_PER_NODE";
/// One number for all machines, which may be an upper bound.
const TASKS_PER_NODE: &str = "SLURM_NTASKS_PER_NODE";

/// The variables that only this file reads.
pub(super) fn variable_names() -> impl Iterator<Item = &'static str> {
    NODE_COUNT.into_iter().chain([NODE, STEP_TASKS])
}

/// The ranks on each machine, as SLURM writes them: `2(x3),1` is two ranks on each of three
/// machines, and one on a fourth.
struct TaskCounts(Vec<(u32, u32)>);

impl TaskCounts {
    fn parse(text: &str) -> Option<Self> {
        let count = |part: &str| {
            let (count, times) = match part.split_once("(x") {
                Some((count, times)) => (count, times.strip_suffix(')')?),
                None => (part, "1"),
            };
            Some((count.parse().ok()?, times.parse().ok()?))
        };
        text.trim().split(',').map(count).collect::<Option<_>>().map(TaskCounts)
    }

    fn total(&self) -> u64 {
        let products = self.0.iter().map(|(count, times)| u64::from(*count) * u64::from(*times));
        products.fold(0, u64::saturating_add)
    }

    fn node_count(&self) -> u64 {
        self.0.iter().map(|(_, times)| u64::from(*times)).sum()
    }

    fn on_node(&self, node: u32) -> Option<u32> {
        let mut first = 0;
        self.0.iter().find_map(|(count, times)| {
            first += u64::from(*times);
            (u64::from(node) < first).then_some(*count)
        })
    }
}

impl Search<'_> {
    /// The number of SLURM's ranks on this machine, and the number of machines with the variable
    /// that it comes from.
    pub(super) fn slurm_nodes(&mut self, world_size: Option<u32>) -> (Option<u32>, Option<(&'static str, u64)>) {
        let node_count = NODE_COUNT.into_iter().find(|name| self.is_set(name));
        let node_count = node_count.and_then(|name| Some((name, u64::from(self.number(name)?))));
        let names = [STEP_TASKS, TASKS_PER_NODE];
        let Some(name) = names.into_iter().find(|name| self.is_set(name)) else {
            // Without these variables, all ranks are on one machine.
            if let Some((name, count)) = node_count.filter(|(_, count)| *count > 1) {
                let names = names.join(" nor ");
                self.mistakes
                    .push(format!("{name} is {count}, and neither {names} says how many ranks this machine has"));
            }
            return (None, node_count);
        };
        let text = self.text(name).unwrap_or_default();
        let Some(counts) = TaskCounts::parse(&text) else {
            self.mistakes.push(format!("{name} is {text:?}, which is not a list of numbers such as \"2(x3),1\""));
            return (None, node_count);
        };
        let node = if self.is_set(NODE) { self.number(NODE) } else { Some(0) };
        let is_exact = name == STEP_TASKS;
        if let Some(world_size) = world_size.filter(|world_size| is_exact && counts.total() != u64::from(*world_size)) {
            let (total, said) = (count_of(counts.total() as usize, "rank"), self.value_of("world_size", world_size));
            self.mistakes.push(format!("{name} is {text:?}, which is {total}, and {said}"));
        }
        let local = match node {
            Some(_) if counts.node_count() == 1 && !is_exact => counts.on_node(0),
            Some(node) => {
                if counts.on_node(node).is_none() {
                    self.mistakes.push(format!("{NODE} is {node}, and {name} is {text:?}, which has no such machine"));
                }
                counts.on_node(node)
            }
            None => None,
        };
        if local.is_some() {
            self.sources.insert("local_world_size", name.to_owned());
        }
        (local, if is_exact { Some((name, counts.node_count())) } else { node_count })
    }
}
