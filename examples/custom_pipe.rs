//! A pipe of your own that the executor spreads over workers: it hides a square of each picture, at
//! random, and the square grows from epoch to epoch.
//!
//! `cargo run --no-default-features --example custom_pipe`
//!
//! Most steps need no such type: a closure in [`Graph::map_with_rng`] does. Write a [`Pipe`] where
//! a step has settings to check before anything runs, wants to know the epoch, should show in the
//! plan what it does, or is for others to use.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use datapipes::{
    Arity, BoxError, Context, DataLoader, Error, ErrorKind, Facts, Graph, Items, OnError, Pipe, Rng,
};
use datapipes_image::{Image, hflip};

/// Hides a square of each picture (Cutout, DeVries and Taylor 2017). Its edge grows evenly over the
/// first epochs, so that training begins with easy pictures.
#[derive(Clone, Debug)]
struct Cutout {
    /// The edge of the square in the end, in pixels.
    edge: u32,
    /// In which epoch, from 0, it has this edge.
    full_in: u64,
}

impl Cutout {
    fn edge_in(&self, epoch: u64) -> u32 {
        let part = (epoch + 1).min(self.full_in + 1) as f64 / (self.full_in + 1) as f64;
        (f64::from(self.edge) * part).round() as u32
    }
}

/// What is done to one picture, without knowing of graphs: easy to test, and of use in a closure,
/// too.
fn hide_square(image: &mut Image, edge: u32, rng: &mut Rng) -> datapipes::Result<()> {
    let (width, height, channels) = (image.width(), image.height(), usize::from(image.channels()));
    if edge > width.min(height) {
        let message =
            format!("a square of {edge} pixels does not fit in an image of {width}x{height}");
        return Err(Error::new(ErrorKind::Shape, message));
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

    /// Does nothing yet: the closure runs when somebody asks for items, on any worker.
    fn apply(&self, input: Items<Image>, cx: &Context) -> Items<Image> {
        let (edge, context) = (self.edge_in(cx.epoch()), cx.clone());
        input.each(cx, move |item| {
            // Random numbers of this item alone: by seed, epoch, the node's name and where the item
            // comes from. So it does not matter which worker takes it, or when.
            let mut rng = context.rng(item.origin());
            // `try_map` names the item in an error. `None` here would leave it out.
            Some(item.try_map(|mut image| {
                hide_square(&mut image, edge, &mut rng)?;
                Ok(image)
            }))
        })
    }

    // Hints: what the executor may do with it. Left out, it would be right as well, and run on one
    // thread.

    /// It looks at one picture at a time and keeps nothing, so that its input may be cut anywhere.
    fn is_shardable(&self) -> bool {
        true
    }

    /// One comes out for each that goes in: the length of the data stays known.
    fn arity(&self) -> Arity {
        Arity::One
    }

    /// For the checker and the printed plan.
    fn facts(&self) -> Facts {
        let problem = (self.edge == 0).then_some("a square without pixels");
        let settings = format!("edge {} from epoch {} on", self.edge, self.full_in);
        Facts::any_order()
            .with_settings(settings)
            .with_problem(problem)
    }

    /// For queues that are bounded in bytes.
    fn weigh(&self, image: &Image) -> Option<usize> {
        Some(image.data().len())
    }
}

/// A gray disk, at another place for each number. The one with number 13 is broken: it is tiny.
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

/// The pipe among closures.
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
    // The kit that this library's own pipes are tested with: laziness, order, pauses, errors that
    // pass by, drop, and whether what the hints promise is true. It would be in a test; it panics
    // if something is wrong.
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

    // A setting without sense is found before anything runs.
    let error = DataLoader::builder(Graph::range(0..1).map(draw).pipe(Cutout {
        edge: 0,
        full_in: 3,
    }))
    .build();
    println!("an edge of 0: {}\n", error.err().ok_or("it was not found")?);

    // The same pictures whatever the number of workers; others in another epoch, and with larger
    // squares.
    let mut digests = BTreeSet::new();
    for workers in [0, 1, 4] {
        let policy = OnError::skip(1);
        let loader = DataLoader::builder(training())
            .workers(workers)
            .seed(7)
            .on_error(policy.clone())
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
        for skipped in policy.skipped() {
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

/// Picture 8 in each epoch, in characters.
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
