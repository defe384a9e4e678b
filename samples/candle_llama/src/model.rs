//! The model: llama's blocks, with every matrix of a block split among the ranks.
//!
//! ```text
//! tokens -> embedding -> blocks -> RMSNorm -> lm_head (split by columns, gathered) -> logits
//!
//! block:      x + attention(RMSNorm(x)), then x + mlp(RMSNorm(x))
//! attention:  q, k, v (split by columns: each rank has some heads) -> rotary embedding
//!             -> attention of the own heads -> o (split by rows) -> all_reduce
//! mlp:        silu(gate(x)) * up(x) (split by columns) -> down (split by rows) -> all_reduce
//! ```

use candle_core::{DType, IndexOp, Module, Result, Tensor};
use candle_nn::rotary_emb::rope;
use candle_nn::var_builder::{Shard, ShardedVarBuilder};
use candle_nn::{Embedding, RmsNorm, ops};
use distcollective::Communicator;
use distcollective_candle::{ColumnParallelLinear, RowParallelLinear};

/// The sizes of a model.
pub struct Config {
    pub vocab: usize,
    pub hidden: usize,
    pub intermediate: usize,
    pub layers: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub max_positions: usize,
    pub rope_theta: f32,
    pub norm_eps: f64,
}

impl Config {
    pub fn head_dim(&self) -> usize {
        self.hidden / self.heads
    }
}

/// Key and value of all positions so far, `[1, heads, positions, head_dim]` each.
type Cache = Option<(Tensor, Tensor)>;

struct Attention {
    q: ColumnParallelLinear,
    k: ColumnParallelLinear,
    v: ColumnParallelLinear,
    o: RowParallelLinear,
    head_dim: usize,
    cache: Cache,
}

impl Attention {
    fn load(config: &Config, vb: ShardedVarBuilder<'_>, communicator: &Communicator) -> Result<Self> {
        // A rank has whole heads, although head_dim may have more divisors.
        for (name, heads) in [("heads", config.heads), ("kv_heads", config.kv_heads)] {
            let n = communicator.world_size() as usize;
            if heads % n != 0 {
                candle_core::bail!("layer {:?}: {name} is {heads}, which is not a multiple of {n} ranks", vb.prefix());
            }
        }
        let (hidden, kv) = (config.hidden, config.kv_heads * config.head_dim());
        let column = |name, out_dim| ColumnParallelLinear::load(hidden, out_dim, false, vb.pp(name), communicator);
        Ok(Attention {
            q: column("q_proj", hidden)?,
            k: column("k_proj", kv)?,
            v: column("v_proj", kv)?,
            o: RowParallelLinear::load(hidden, hidden, false, vb.pp("o_proj"), communicator)?,
            head_dim: config.head_dim(),
            cache: None,
        })
    }

    /// `x` is `[1, tokens, hidden]`, and so is the result.
    fn forward(&mut self, x: &Tensor, rotary: &Rotary, position: usize) -> Result<Tensor> {
        let (_, tokens, _) = x.dims3()?;
        // [1, tokens, heads * head_dim] -> [1, heads, tokens, head_dim]
        let heads = |x: Tensor| x.reshape((1, tokens, (), self.head_dim))?.transpose(1, 2)?.contiguous();
        let q = rotary.apply(&heads(self.q.forward(x)?)?, position)?;
        let k = rotary.apply(&heads(self.k.forward(x)?)?, position)?;
        let v = heads(self.v.forward(x)?)?;
        let (k, v) = match &self.cache {
            Some((keys, values)) => (Tensor::cat(&[keys, &k], 2)?, Tensor::cat(&[values, &v], 2)?),
            None => (k, v),
        };
        self.cache = Some((k.clone(), v.clone()));
        // Some heads of the query share a head of key and value.
        let share = q.dim(1)? / k.dim(1)?;
        let (k, v) = (repeat_heads(&k, share)?, repeat_heads(&v, share)?);
        let scores = (q.matmul(&k.t()?)? / (self.head_dim as f64).sqrt())?;
        let weights = ops::softmax_last_dim(&scores.broadcast_add(&causal_mask(tokens, position, x)?)?)?;
        let y = weights.matmul(&v)?.transpose(1, 2)?.reshape((1, tokens, ()))?;
        self.o.forward(&y)
    }
}

/// Repeats each head: `[1, heads, positions, head_dim]` -> `[1, heads * times, ..]`.
fn repeat_heads(x: &Tensor, times: usize) -> Result<Tensor> {
    let (batch, heads, positions, head_dim) = x.dims4()?;
    let repeated = x.unsqueeze(2)?.expand((batch, heads, times, positions, head_dim))?;
    repeated.reshape((batch, heads * times, positions, head_dim))
}

/// What is added to the scores: a token does not see those behind it.
fn causal_mask(tokens: usize, position: usize, like: &Tensor) -> Result<Tensor> {
    let row =
        |token| (0..position + tokens).map(move |other| if other > position + token { f32::NEG_INFINITY } else { 0.0 });
    let mask: Vec<f32> = (0..tokens).flat_map(row).collect();
    Tensor::from_vec(mask, (tokens, position + tokens), like.device())
}

/// The rotary embedding: the cosines and sines of every position.
struct Rotary {
    cos: Tensor,
    sin: Tensor,
}

impl Rotary {
    fn new(config: &Config, vb: &ShardedVarBuilder<'_>) -> Result<Self> {
        let dim = config.head_dim();
        let frequencies: Vec<f32> =
            (0..dim).step_by(2).map(|i| config.rope_theta.powf(-(i as f32) / dim as f32)).collect();
        let frequencies = Tensor::from_vec(frequencies, (1, dim / 2), vb.device())?;
        let positions = Tensor::arange(0, config.max_positions as u32, vb.device())?.to_dtype(DType::F32)?;
        let angles = positions.unsqueeze(1)?.matmul(&frequencies)?;
        Ok(Rotary { cos: angles.cos()?, sin: angles.sin()? })
    }

    /// `x` is `[1, heads, tokens, head_dim]`.
    fn apply(&self, x: &Tensor, position: usize) -> Result<Tensor> {
        let tokens = x.dim(2)?;
        rope(x, &self.cos.narrow(0, position, tokens)?, &self.sin.narrow(0, position, tokens)?)
    }
}

struct Mlp {
    gate: ColumnParallelLinear,
    up: ColumnParallelLinear,
    down: RowParallelLinear,
}

impl Mlp {
    fn load(config: &Config, vb: ShardedVarBuilder<'_>, communicator: &Communicator) -> Result<Self> {
        let (hidden, intermediate) = (config.hidden, config.intermediate);
        Ok(Mlp {
            gate: ColumnParallelLinear::load(hidden, intermediate, false, vb.pp("gate_proj"), communicator)?,
            up: ColumnParallelLinear::load(hidden, intermediate, false, vb.pp("up_proj"), communicator)?,
            down: RowParallelLinear::load(intermediate, hidden, false, vb.pp("down_proj"), communicator)?,
        })
    }
}

impl Module for Mlp {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.down.forward(&(ops::silu(&self.gate.forward(x)?)? * self.up.forward(x)?)?)
    }
}

struct Block {
    attention_norm: RmsNorm,
    attention: Attention,
    mlp_norm: RmsNorm,
    mlp: Mlp,
}

impl Block {
    fn load(config: &Config, vb: ShardedVarBuilder<'_>, communicator: &Communicator) -> Result<Self> {
        Ok(Block {
            attention_norm: load_norm(config, vb.pp("input_layernorm"))?,
            attention: Attention::load(config, vb.pp("self_attn"), communicator)?,
            mlp_norm: load_norm(config, vb.pp("post_attention_layernorm"))?,
            mlp: Mlp::load(config, vb.pp("mlp"), communicator)?,
        })
    }

    fn forward(&mut self, x: &Tensor, rotary: &Rotary, position: usize) -> Result<Tensor> {
        let x = (x + self.attention.forward(&self.attention_norm.forward(x)?, rotary, position)?)?;
        &x + self.mlp.forward(&self.mlp_norm.forward(&x)?)?
    }
}

/// Every rank has the whole norm.
fn load_norm(config: &Config, vb: ShardedVarBuilder<'_>) -> Result<RmsNorm> {
    let weight = vb.get_with_hints(config.hidden, "weight", Shard::default())?;
    Ok(RmsNorm::new(weight, config.norm_eps))
}

/// One rank's part of the model.
pub struct Llama {
    embedding: Embedding,
    blocks: Vec<Block>,
    norm: RmsNorm,
    lm_head: ColumnParallelLinear,
    rotary: Rotary,
}

impl Llama {
    /// Loads this rank's part.
    pub fn load(config: &Config, vb: ShardedVarBuilder<'_>, communicator: &Communicator) -> Result<Self> {
        let model = vb.pp("model");
        let embeddings =
            model.get_with_hints((config.vocab, config.hidden), "embed_tokens.weight", Shard::default())?;
        let block = |layer| Block::load(config, model.pp("layers").pp(layer), communicator);
        let lm_head = ColumnParallelLinear::load(config.hidden, config.vocab, false, vb.pp("lm_head"), communicator)?;
        Ok(Llama {
            embedding: Embedding::new(embeddings, config.hidden),
            blocks: (0..config.layers).map(block).collect::<Result<_>>()?,
            norm: load_norm(config, model.pp("norm"))?,
            lm_head: lm_head.gather_output(true),
            rotary: Rotary::new(config, &vb)?,
        })
    }

    /// The logits `[vocab]` behind the last of these tokens, whose first is at `position`. The
    /// tokens before are in the caches. Collective.
    pub fn forward(&mut self, tokens: &[u32], position: usize) -> Result<Tensor> {
        let tokens = Tensor::new(tokens, self.rotary.cos.device())?.unsqueeze(0)?;
        let mut x = self.embedding.forward(&tokens)?;
        for block in &mut self.blocks {
            x = block.forward(&x, &self.rotary, position)?;
        }
        let last = x.narrow(1, x.dim(1)? - 1, 1)?.contiguous()?;
        self.lm_head.forward(&self.norm.forward(&last)?)?.i((0, 0))
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;
    use candle_nn::var_builder::ShardedSafeTensors;

    use super::*;
    use crate::{BOUND, CONFIG, PROMPT, make_weights};

    /// What the mask, the rotary embedding and the cache have to agree on.
    #[test]
    fn tokens_one_by_one_have_the_logits_of_all_at_once() {
        let file = make_weights().expect("weights");
        // SAFETY: no process writes the file any more.
        let vb =
            unsafe { ShardedSafeTensors::var_builder(&[file.path()], DType::F32, &Device::Cpu) }.expect("the file");
        let alone = Communicator::builder().in_process(1).expect("a communicator").remove(0);
        let model = || Llama::load(&CONFIG, vb.clone(), &alone).expect("the model");
        let logits = |tensor: Result<Tensor>| tensor.and_then(|tensor| tensor.to_vec1::<f32>()).expect("logits");
        let (mut at_once, mut one_by_one) = (model(), model());
        let expected = logits(at_once.forward(&PROMPT, 0));
        let found = PROMPT.iter().enumerate().map(|(position, token)| logits(one_by_one.forward(&[*token], position)));
        let found = found.last().expect("the last token's logits");
        let largest = expected.iter().fold(0f32, |largest, logit| largest.max(logit.abs()));
        for (logit, expected) in found.iter().zip(&expected) {
            assert!((logit - expected).abs() <= BOUND * largest, "{logit} and not {expected}");
        }
        // The order of the tokens counts.
        let mut reversed = PROMPT;
        reversed[..PROMPT.len() - 1].reverse();
        let reversed = logits(model().forward(&reversed, 0));
        assert!(reversed.iter().zip(&expected).any(|(a, b)| (a - b).abs() > 100.0 * BOUND * largest));
    }
}
