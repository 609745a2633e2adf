//! A user's pipe that the executor spreads over workers: it hides a square of each image, at
//! random, and the square grows from epoch to epoch.
//!
//! `cargo run --no-default-features --example custom_pipe`
//!
//! Most steps need no such type: a closure in [`Graph::map_with_rng`] suffices. Write a [`Pipe`] if
//! a step has settings to check before anything runs, depends on the epoch, should show its
//! settings in the plan, or is a part of a library.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use datapipes::{
    Arity, BoxError, Context, DataLoader, Error, Graph, Hints, Items, OnError, Pipe, Rng,
};
use datapipes_image::{Image, hflip};

/// Hides a square of each image (Cutout, DeVries and Taylor 2017). Its edge grows evenly over the
/// first epochs, so that training begins with easy images.
#[derive(Clone, Debug)]
struct Cutout {
    /// Final edge of the square, in pixels.
    edge: u32,
    /// Number of the epoch, from 0, in which the edge has its final size.
    full_in: u64,
}

impl Cutout {
    fn edge_in(&self, epoch: u64) -> u32 {
        let part = (epoch + 1).min(self.full_in + 1) as f64 / (self.full_in + 1) as f64;
        (f64::from(self.edge) * part).round() as u32
    }
}

/// Processes one image, independently of graphs: easy to test, and usable in a closure, too.
fn hide_square(image: &mut Image, edge: u32, rng: &mut Rng) -> datapipes::Result<()> {
    let (width, height, channels) = (image.width(), image.height(), usize::from(image.channels()));
    if edge > width.min(height) {
        let message =
            format!("a square of {edge} pixels does not fit in an image of {width}x{height}");
        return Err(Error::shape(message));
    }
    let x = rng.below(u64::from(width - edge) + 1) as usize;
    let y = rng.below(u64::from(height - edge) + 1) as usize;
    for row in image
        .data_mut()
        .chunks_exact_mut(width as usize * channels)
        .skip(y)
        .take(edge as usize)
    {
        row[x * channels..(x + edge as usize) * channels].fill(0);
    }
    Ok(())
}

impl Pipe<Image> for Cutout {
    type Out = Image;

    /// Does nothing yet: the closure runs when items are requested, on any worker.
    fn apply(&self, input: Items<Image>, cx: &Context) -> Items<Image> {
        let (edge, context) = (self.edge_in(cx.epoch()), cx.clone());
        input.each(cx, move |item| {
            // The random numbers belong to this item: they depend on seed, epoch, the node's name
            // and the item's origin, and not on the worker or the time.
            let mut rng = context.rng(item.origin());
            // `try_map` names the item in an error. `None` here would drop the item.
            Some(item.try_map(|mut image| {
                hide_square(&mut image, edge, &mut rng)?;
                Ok(image)
            }))
        })
    }

    // Hints for the executor. Without them the result is the same, computed on one thread.

    /// The pipe processes one image at a time and has no state, so that its input may be split
    /// anywhere.
    /// There is one output item for each input item, so the length of the data stays known.
    /// Hints for the checker and the printed plan.
    fn hints(&self) -> Hints {
        let problem = (self.edge == 0).then_some("a square without pixels");
        let settings = format!("edge {} from epoch {} on", self.edge, self.full_in);
        Hints::shardable()
            .arity(Arity::One)
            .settings(settings)
            .problem(problem)
    }

    /// Size for queues that are bounded in bytes.
    fn weigh(&self, image: &Image) -> Option<usize> {
        Some(image.data().len())
    }
}

/// Draws a gray disk, at another place for each number. Image 13 is broken: it is tiny.
fn draw(n: u64) -> Image {
    let (width, height) = if n == 13 { (4, 4) } else { (22, 11) };
    let (cx, cy) = (5.0 + (n % 12) as f64, 3.0 + (n % 5) as f64);
    let pixel = |x: u32, y: u32| {
        let distance = ((f64::from(x) - cx) / 2.0).hypot(f64::from(y) - cy);
        if distance < 3.0 {
            255 - (distance * 40.0) as u8
        } else {
            60
        }
    };
    let data = (0..height)
        .flat_map(|y| (0..width).map(move |x| pixel(x, y)))
        .collect();
    Image::new(width, height, 1, data).expect("as many pixels as its size says")
}

/// Returns a graph with the pipe among closures.
fn training() -> Graph<Image> {
    let mirrored = Graph::range(0..1000)
        .map(draw)
        .map_with_rng(|mut image, rng| {
            if rng.chance(0.5) {
                hflip(&mut image);
            }
            image
        });
    mirrored.pipe(Cutout {
        edge: 8,
        full_in: 3,
    })
}

fn main() -> Result<(), BoxError> {
    // The contract test of this library's own pipes: laziness, order, pauses, errors of the input,
    // drop, and the truth of the hints. It belongs in a test; it panics if a check fails.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {})); // it raises a panic on purpose, to see it arrive
    datapipes::testing::check_pipe(
        &Cutout {
            edge: 2,
            full_in: 0,
        },
        (0..12).map(draw).collect(),
    );
    std::panic::set_hook(hook);
    println!("check_pipe: Cutout keeps the contract\n");

    // An invalid setting is found before anything runs.
    let error = DataLoader::builder(Graph::range(0..1).map(draw).pipe(Cutout {
        edge: 0,
        full_in: 3,
    }))
    .build();
    println!("an edge of 0: {}\n", error.err().ok_or("it was not found")?);

    // The images are the same for any number of workers; in another epoch they differ, with
    // larger squares.
    let mut digests = BTreeSet::new();
    for workers in [0, 1, 4] {
        let loader = DataLoader::builder(training())
            .workers(workers)
            .seed(7)
            .on_error(OnError::skip(1))
            .build()?;
        let images = loader
            .epoch(3)
            .blocking()
            .collect::<datapipes::Result<Vec<Image>>>()?;
        let mut hasher = DefaultHasher::new();
        images
            .iter()
            .for_each(|image| image.data().hash(&mut hasher));
        println!(
            "workers: {workers}, {} pictures, digest {:016x}",
            images.len(),
            hasher.finish()
        );
        for skipped in loader
            .stats()
            .into_iter()
            .flat_map(|stats| stats.skipped_items)
        {
            println!("  left out: {}", skipped.error);
        }
        digests.insert(hasher.finish());
    }
    if digests.len() > 1 {
        return Err("the pictures depend on the number of workers".into());
    }

    println!();
    let loader = DataLoader::builder(training())
        .seed(7)
        .on_error(OnError::skip(1))
        .build()?;
    let mut shown = Vec::new();
    for epoch in 0..4 {
        shown.extend(loader.epoch(epoch).blocking().nth(8).transpose()?);
    }
    print_beside(&shown);

    println!("\n{}", loader.explain());
    Ok(())
}

/// Prints image 8 of each epoch, in characters.
fn print_beside(images: &[Image]) {
    for (epoch, image) in images.iter().enumerate() {
        print!(
            "{:<width$}",
            format!("epoch {epoch}"),
            width = image.width() as usize + 3
        );
    }
    println!();
    for y in 0..images.first().map_or(0, Image::height) {
        for image in images {
            let shade = |x| b" .:-=+*#%@"[usize::from(image.pixel(x, y)[0]) * 9 / 255] as char;
            print!("{}   ", (0..image.width()).map(shade).collect::<String>());
        }
        println!();
    }
}
