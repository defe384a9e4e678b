//! Optimization profiles: the shapes for which a network with dynamic inputs is built.

use super::{Network, TensorId, TensorSource};
use crate::error::{Error, Result, bail};
use crate::shape::Dims;
use crate::util::text::count_of;

/// The most profiles of a network. Building checks every layer at three shapes of each.
pub const MAX_PROFILES: usize = 64;

/// The shapes of one input in one profile: min, opt and max.
pub(crate) type InputProfile = [Dims; 3];

/// Checks the shapes of an input with these dimensions.
fn check(points: &InputProfile, dims: &Dims) -> Result<()> {
    for point in points {
        if point.is_dynamic() {
            bail!(InvalidArgument, "{point} in a profile has a dimension of -1");
        }
        let fits = point.dim_count() == dims.dim_count()
            && dims.as_slice().iter().zip(point.as_slice()).all(|(&d, &p)| d == -1 || d == p);
        if !fits {
            bail!(InvalidArgument, "{point} in a profile does not fit the input's dimensions {dims}");
        }
    }
    let ordered = |a: &Dims, b: &Dims| a.as_slice().iter().zip(b.as_slice()).all(|(a, b)| a <= b);
    let [min, opt, max] = points;
    if !ordered(min, opt) || !ordered(opt, max) {
        bail!(InvalidArgument, "a profile has min <= opt <= max in each dimension, not {min}, {opt}, {max}");
    }
    Ok(())
}

impl Network {
    /// Adds an optimization profile and gives its index: 0 for the first. Each profile needs the
    /// shapes of all inputs that have dynamic dimensions
    /// ([`set_profile_shapes`](Self::set_profile_shapes)). A context runs with one profile at a
    /// time ([`set_optimization_profile`](crate::ExecutionContext::set_optimization_profile)).
    ///
    /// ```
    /// # use distcollective::{DataType, Network};
    /// # let mut network = Network::new();
    /// let x = network.add_input("x", DataType::Float32, [-1, 8])?;
    /// let decode = network.add_optimization_profile()?;
    /// network.set_profile_shapes(decode, x, [1, 8], [1, 8], [16, 8])?; // min, opt, max
    /// let prefill = network.add_optimization_profile()?;
    /// network.set_profile_shapes(prefill, x, [64, 8], [512, 8], [4096, 8])?;
    /// assert_eq!((decode, prefill), (0, 1));
    /// # Ok::<(), distcollective::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The network has [`MAX_PROFILES`] profiles.
    pub fn add_optimization_profile(&mut self) -> Result<usize> {
        if self.profile_count == MAX_PROFILES {
            bail!(InvalidArgument, "the network has {MAX_PROFILES} optimization profiles, and cannot have more");
        }
        self.profile_count += 1;
        Ok(self.profile_count - 1)
    }

    /// The number of optimization profiles that were added.
    pub fn optimization_profile_count(&self) -> usize {
        self.profile_count
    }

    /// The number of profiles of an engine: a network without any has one.
    pub(crate) fn implied_profile_count(&self) -> usize {
        self.profile_count.max(1)
    }

    /// Sets the smallest, the usual and the largest shape of an input in a profile.
    ///
    /// # Errors
    ///
    /// - No profile has this index, or it has shapes for the input already.
    /// - The tensor is not an input of this network.
    /// - A shape has another number of dimensions, or another value for a dimension that is not
    ///   dynamic.
    /// - Not min <= opt <= max in each dimension.
    pub fn set_profile_shapes<D: TryInto<Dims, Error: Into<Error>>>(
        &mut self,
        profile: usize,
        input: TensorId,
        min: D,
        opt: D,
        max: D,
    ) -> Result<()> {
        if profile >= self.profile_count {
            let count = count_of(self.profile_count, "optimization profile");
            bail!(InvalidArgument, "there is no optimization profile {profile}; the network has {count}");
        }
        let name = self.check_tensor(input)?.name.clone();
        let [min, opt, max] = [min, opt, max].map(|dims| dims.try_into().map_err(Into::into));
        let shapes = || Ok([min?, opt?, max?]);
        let result = shapes().and_then(|shapes| self.store_profile(profile, input, shapes));
        result.map_err(|error| error.about(|| format!("input {name:?}")))
    }

    fn store_profile(&mut self, profile: usize, input: TensorId, shapes: InputProfile) -> Result<()> {
        let TensorSource::Input(input) = &mut self.tensors[input.index()].source else {
            bail!(InvalidArgument, "the tensor is the output of a layer; profiles are for inputs");
        };
        check(&shapes, &input.dims)?;
        if input.profiles.len() <= profile {
            input.profiles.resize(profile + 1, None);
        }
        let place = &mut input.profiles[profile];
        if place.is_some() {
            bail!(
                InvalidArgument,
                "optimization profile {profile} has shapes for it already; add_optimization_profile makes another profile"
            );
        }
        *place = Some(Box::new(shapes));
        Ok(())
    }

    /// Sets the shapes of an input in profile 0, and adds that profile if there is none: all that a
    /// network with one profile needs.
    ///
    /// # Errors
    ///
    /// The errors of [`set_profile_shapes`](Self::set_profile_shapes). After an error the network
    /// is as it was.
    pub fn set_optimization_profile<D: TryInto<Dims, Error: Into<Error>>>(
        &mut self,
        input: TensorId,
        min: D,
        opt: D,
        max: D,
    ) -> Result<()> {
        let before = self.profile_count;
        self.profile_count = before.max(1);
        self.set_profile_shapes(0, input, min, opt, max).inspect_err(|_| self.profile_count = before)
    }

    /// Checks the profiles of a network that was read from a plan.
    pub(crate) fn check_profiles(&self) -> Result<()> {
        if self.profile_count > MAX_PROFILES {
            bail!(InvalidArgument, "{} optimization profiles; at most {MAX_PROFILES} are allowed", self.profile_count);
        }
        for (id, input) in self.described_inputs() {
            if input.profiles.len() > self.profile_count {
                let (name, count) = (&self.tensors[id.index()].name, count_of(self.profile_count, "profile"));
                bail!(InvalidArgument, "input {name:?} has shapes for more than {count}");
            }
            input.profiles.iter().flatten().try_for_each(|shapes| check(shapes, &input.dims))?;
        }
        Ok(())
    }
}
