//! Functions of real numbers that return the same bits on every machine. They use only additions,
//! multiplications, divisions and square roots, which IEEE 754 defines exactly. The functions of
//! `std` come from the system's library, and differ in the last bit. Values that decide which
//! pixels are taken, or how a batch is mixed, must not differ.

use std::f64::consts::{LN_2, LOG2_E, SQRT_2};

use datapipes::Rng;

const FRACTION: u64 = (1 << 52) - 1;
const ONE: u64 = 1023 << 52;

/// Returns the natural logarithm of a positive number that is neither tiny (below 2⁻¹⁰²²) nor
/// infinite, within some units of the last place.
pub(crate) fn ln(x: f64) -> f64 {
    debug_assert!(x.is_normal() && x > 0.0);
    let mut exponent = (x.to_bits() >> 52) as i64 - 1023;
    let mut mantissa = f64::from_bits(x.to_bits() & FRACTION | ONE);
    if mantissa > SQRT_2 {
        mantissa *= 0.5;
        exponent += 1;
    }
    // ln m = 2 artanh((m - 1) / (m + 1)), whose argument is below 0.172: 12 terms are enough.
    let s = (mantissa - 1.0) / (mantissa + 1.0);
    let series = (0..12)
        .rev()
        .fold(0.0, |sum, k| sum * (s * s) + 1.0 / f64::from(2 * k + 1));
    exponent as f64 * LN_2 + 2.0 * s * series
}

/// Returns the exponential function, within some units of the last place. Below -708 it is 0, above
/// 709 infinite.
pub(crate) fn exp(x: f64) -> f64 {
    if x < -708.0 {
        return 0.0;
    }
    if x > 709.0 {
        return f64::INFINITY;
    }
    // ln 2 in two parts, the first of 32 bits, so that its multiples are exact.
    const HIGH: f64 = f64::from_bits(0x3fe6_2e42_fee0_0000);
    const LOW: f64 = 1.908_214_929_270_587_7e-10;
    let halvings = (x * LOG2_E + 0.5).floor();
    let rest = x - halvings * HIGH - halvings * LOW;
    let series = (1..=16)
        .rev()
        .fold(1.0, |sum, k| 1.0 + rest / f64::from(k) * sum);
    series * f64::from_bits(((halvings as i64 + 1023) as u64) << 52)
}

/// Returns sine and cosine of an angle in degrees; exact for multiples of 90.
pub(crate) fn sin_cos_degrees(angle: f64) -> (f64, f64) {
    // The remainder is exact.
    let angle = angle % 360.0;
    let quarters = (angle / 90.0).round_ties_even();
    let x = (angle - 90.0 * quarters).to_radians();
    let series = |first: i32| {
        (0..9).rev().fold(1.0, |sum, k| {
            let n = f64::from(2 * k + first);
            1.0 - x * x / (n * (n + 1.0)) * sum
        })
    };
    let (sin, cos) = (x * series(2), series(1));
    match quarters.rem_euclid(4.0) as u8 {
        0 => (sin, cos),
        1 => (cos, -sin),
        2 => (-sin, -cos),
        _ => (-cos, sin),
    }
}

/// Draws uniformly between 0 and 1, excluding both.
pub(crate) fn open_unit(rng: &mut Rng) -> f64 {
    ((rng.next_u64() >> 12) as f64 + 0.5) / (1u64 << 52) as f64
}

/// Draws two numbers of the normal distribution with mean 0 and standard deviation 1, by the polar
/// method (Marsaglia and Bray 1964).
pub(crate) fn two_normals(rng: &mut Rng) -> [f64; 2] {
    loop {
        let (x, y) = (2.0 * open_unit(rng) - 1.0, 2.0 * open_unit(rng) - 1.0);
        let square = x * x + y * y;
        if square < 1.0 && square.is_normal() {
            let scale = (-2.0 * ln(square) / square).sqrt();
            return [x * scale, y * scale];
        }
    }
}

/// Draws a number of the distribution Beta(a, a), from 0 to 1: by Jöhnk 1964, in logarithms, for
/// `a` up to 1; by Cheng 1978 (BB) above. `a` must be positive and not huge.
pub(crate) fn beta(a: f64, rng: &mut Rng) -> f64 {
    if a <= 1.0 {
        loop {
            let (x, y) = (ln(open_unit(rng)) / a, ln(open_unit(rng)) / a);
            if exp(x) + exp(y) <= 1.0 {
                return 1.0 / (1.0 + exp(y - x));
            }
        }
    }
    loop {
        let (u, v) = (open_unit(rng), open_unit(rng));
        // The remainder of the general method for two equal parameters.
        let logit = ln(u / (1.0 - u)) / a.sqrt();
        let w = a * exp(logit);
        let r = (a + a.sqrt()) * logit - 2.0 * LN_2;
        if r + 2.0 * a * ln(2.0 * a / (a + w)) >= ln(u * u * v) {
            return w / (a + w);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(is: f64, should: f64) -> bool {
        (is - should).abs() <= 4.0 * f64::EPSILON * should.abs().max(f64::MIN_POSITIVE)
    }

    #[test]
    fn they_are_what_they_are_called() {
        for i in 1..5_000 {
            let x = f64::from(i) * 1.48e-2;
            assert!(
                (ln(x) - x.ln()).abs() <= 4e-16 * x.ln().abs().max(1.0),
                "ln {x}"
            );
            assert!(
                close(exp(x), x.exp()) && close(exp(-x), (-x).exp()),
                "exp {x}"
            );
            let (sin, cos) = sin_cos_degrees(x * 10.0 - 360.0);
            let should = (x * 10.0 - 360.0).to_radians().sin_cos();
            assert!(
                (sin - should.0).abs() < 2e-15 && (cos - should.1).abs() < 2e-15,
                "sin, cos {x}"
            );
        }
        for x in [1e-300, f64::MIN_POSITIVE, 1e300, 2f64.powi(-53)] {
            assert!(close(ln(x), x.ln()), "ln {x}");
        }
        assert_eq!(
            (exp(0.0), exp(-800.0), exp(800.0), ln(1.0)),
            (1.0, 0.0, f64::INFINITY, 0.0)
        );
        assert!(close(exp(-707.9), (-707.9f64).exp()) && close(exp(708.9), 708.9f64.exp()));
        for (angle, sin, cos) in [
            (0.0, 0.0, 1.0),
            (90.0, 1.0, 0.0),
            (-90.0, -1.0, 0.0),
            (180.0, 0.0, -1.0),
        ] {
            assert_eq!(sin_cos_degrees(angle), (sin, cos));
        }
    }

    #[test]
    fn golden_bits() {
        let mut rng = Rng::from_key([1, 2, 3, 4]);
        let [x, y] = two_normals(&mut rng);
        let betas = [0.2, 1.0, 8.0].map(|a| beta(a, &mut rng).to_bits());
        let bits = [
            ln(0.3).to_bits(),
            exp(1.7).to_bits(),
            sin_cos_degrees(4.5).0.to_bits(),
            x.to_bits(),
            y.to_bits(),
        ];
        assert_eq!(
            (bits, betas),
            (GOLDEN_BITS, GOLDEN_BETAS),
            "{bits:#x?} {betas:#x?}"
        );
    }

    const GOLDEN_BITS: [u64; 5] = [
        0xbff34378fcbda720,
        0x4015e552770df8a6,
        0x3fb415e532398e49,
        0xbfe14e6309c8054b,
        0xbfc8b3a8e2a83fa2,
    ];
    const GOLDEN_BETAS: [u64; 3] = [0x3fd98137ec837b00, 0x3fe1ad1de14937ae, 0x3fdf6e1f4fc825d2];

    #[test]
    fn the_distributions_have_their_moments() {
        let (mut rng, draws) = (Rng::from_key([5, 0, 0, 0]), 10_000);
        for a in [1e-6, 0.1, 0.4, 1.0, 1.0000001, 2.0, 20.0, 1e6] {
            let values: Vec<f64> = (0..draws).map(|_| beta(a, &mut rng)).collect();
            assert!(values.iter().all(|x| (0.0..=1.0).contains(x)), "{a}");
            let moment =
                |k: i32| values.iter().map(|x| (x - 0.5).powi(k)).sum::<f64>() / f64::from(draws);
            // Moments of Beta(a, a): mean 1/2, variance 1/(4(2a+1)), fourth moment
            // 3/(16(2a+1)(2a+3)).
            let variance = 0.25 / (2.0 * a + 1.0);
            let fourth = 3.0 / (16.0 * (2.0 * a + 1.0) * (2.0 * a + 3.0));
            assert!(
                moment(1).abs() < 4.0 * (variance / f64::from(draws)).sqrt(),
                "{a}: {}",
                moment(1)
            );
            assert!(
                (moment(2) / variance - 1.0).abs() < 0.06,
                "{a}: {} {variance}",
                moment(2)
            );
            assert!(
                (moment(4) / fourth - 1.0).abs() < 0.14,
                "{a}: {} {fourth}",
                moment(4)
            );
        }
        let normals: Vec<f64> = (0..draws / 2).flat_map(|_| two_normals(&mut rng)).collect();
        let moment = |k: i32| normals.iter().map(|x| x.powi(k)).sum::<f64>() / f64::from(draws);
        assert!(
            moment(1).abs() < 0.04
                && (moment(2) - 1.0).abs() < 0.06
                && (moment(4) - 3.0).abs() < 0.4
        );
    }
}
