use std::path::Path;

use datapipes::loader::monitor::Figures;
use datapipes::{DataLoader, Graph};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use serde_json::{Value, json};

use super::draw;
use super::screen::{Pressed, press};
use super::view::{Contact, Sort, View};

/// Sets some fields of an object.
fn patch(object: &mut Value, fields: Value) {
    let Value::Object(fields) = fields else {
        panic!("{fields} are no fields")
    };
    for (name, value) in fields {
        object[name] = value;
    }
}

/// Returns an answer of a loader, ten seconds into an epoch.
fn answer() -> Value {
    let [even, odd] = [0, 1].map(|from| Graph::range(from..100));
    let decode = |n: u64| datapipes::Ok(n);
    let graph = Graph::concat([even, odd]).try_map(decode).named("decode");
    let loader = DataLoader::builder(graph.batch(4))
        .workers(2)
        .build()
        .unwrap();
    loader.epoch(0).blocking().for_each(drop);
    let mut stats = serde_json::to_value(loader.stats().unwrap()).unwrap();
    let times =
        |seconds: f64| json!({ "mean": seconds, "max": seconds, "buckets": [[seconds, 10]] });
    (stats["wall"], stats["delivered"], stats["waited"]) = (json!(10.0), json!(5000), json!(2.5));
    (stats["waits"], stats["workers"]) = (times(0.002), json!(2));
    patch(
        &mut stats["memory"],
        json!({ "bytes": 1 << 20, "most": 3 << 20, "limit": 4 << 20 }),
    );
    for (node, (items, busy)) in [
        (100, 0.1),
        (200, 0.2),
        (300, 0.0),
        (20_000, 15.0),
        (5000, 0.5),
    ]
    .into_iter()
    .enumerate()
    {
        let node = &mut stats["nodes"][node];
        (node["items"], node["busy"]) = (json!(items), json!(busy));
        (node["item_time"], node["segment"]) = (times(busy / 1e4), json!(null));
    }
    stats["nodes"][3]["segment"] = json!("A");
    let segment = json!({
        "work": "cpu", "workers": 2, "inline": false, "morsel_time": times(0.05), "busy": 15.0,
        "starved": 1.0, "full": 8.0, "occupancy": 3.25, "concurrency": 8,
    });
    patch(&mut stats["segments"][0], segment);
    patch(
        &mut stats["segments"][0]["memory"],
        json!({ "bytes": 2048 }),
    );
    stats["queue"] = json!(null);
    stats["bottleneck"] = json!("segment A (decode), mostly `decode`: the 2 workers are busy");
    json!({
        "protocol": 1, "version": "0.1.0", "process": 7, "program": "train", "loader": 0, "epoch": 3,
        "running": true, "stats": stats,
        "description": {
            "explain": "loader: seed 0", "length": 10_000, "inputs": [[], [], [0, 1], [2], [3]],
        },
    })
}

fn parse(answer: &Value) -> Figures {
    Figures::parse(&answer.to_string()).unwrap()
}

fn view(answer: &Value) -> View {
    View::new(Path::new("/run/7-0.sock"), Some(parse(answer)), 1)
}

/// Returns the lines on a screen, without the blanks at their ends.
fn screen(view: &mut View, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw::draw(frame, view)).unwrap();
    let buffer = terminal.backend().buffer();
    let row = |y: u16| {
        (0..width)
            .map(|x| buffer[(x, y)].symbol())
            .collect::<String>()
    };
    (0..height).map(|y| row(y).trim_end().to_owned()).collect()
}

fn key(code: char, view: &mut View) -> Pressed {
    press(KeyEvent::new(KeyCode::Char(code), KeyModifiers::NONE), view)
}

#[test]
fn the_screen_shows_the_graph_and_what_holds_it_up() {
    let shown = screen(&mut view(&answer()), 80, 24);
    let expected = [
        " datapipes top  7-0 train  │  epoch 3  │  0:10  │  figures: whole epoch",
        "  progress  ████████░░░░░░░░ 5 000 of 10 000 items, 0:10 left",
        "  consumer  500.0/s   waits 25.0 % (p50 2.0 ms, p99 2.0 ms)   ready 99.8 %",
        "  memory    ██░░░░░░ 1.0 MiB of 4.0 MiB, most 3.0 MiB   no queue",
        "",
        "  node                           items/s       p50       p99    busy",
        "  range                             10.0   10.0 µs   10.0 µs     1 %  ▏░░░░░░░░░",
        "  range#2                           20.0   20.0 µs   20.0 µs     2 %  ▏░░░░░░░░░",
        "  concat ← range, range#2           30.0      0 ns      0 ns     0 %  ░░░░░░░░░░",
        "▶ decode                     A     2.0 k    1.5 ms    1.5 ms   150 %  █████████▌",
        "  batch                            500.0   50.0 µs   50.0 µs     5 %  ▍░░░░░░░░░",
    ];
    assert_eq!(shown[..expected.len()], expected, "{}", shown.join("\n"));
    let expected = [
        "",
        "  segment    workers     in flight    busy  no input    full       p99     bytes",
        "  A CPU            2      3.2 of 8   150 %      10 %    80 %   50.0 ms   2.0 KiB",
        "",
        "  bottleneck: segment A (decode), mostly `decode`: the 2 workers are busy",
    ];
    assert_eq!(shown[11..16], expected, "{}", shown.join("\n"));
    let keys = " q quit  p pause  s sort  r reset  e epoch  l last 10 s  ↑↓ scroll";
    assert_eq!(shown[23], keys);
}

#[test]
fn a_page_has_what_the_screen_has() {
    let page = draw::page(&view(&answer()));
    assert!(
        page.contains("▶ decode") && page.contains("bottleneck: segment A"),
        "{page}"
    );
    assert!(!page.contains("quit") && page.lines().all(|line| line == line.trim_end()));
}

#[test]
fn no_size_of_the_screen_is_too_small() {
    let mut view = view(&answer());
    view.loaders = 2;
    view.contact = Contact::Lost("it has ended".to_owned());
    for width in (0..130).step_by(3) {
        for height in 0..30 {
            if width > 0 && height > 0 {
                screen(&mut view, width, height);
            }
        }
    }
}

#[test]
fn nodes_without_room_are_scrolled_to() {
    let mut view = view(&answer());
    let shown = screen(&mut view, 80, 13);
    assert!(
        shown.contains(&"  … 0 nodes above, 2 below".to_owned()),
        "{}",
        shown.join("\n")
    );
    for _ in 0..9 {
        press(KeyEvent::new(KeyCode::Down, KeyModifiers::NONE), &mut view);
    }
    let shown = screen(&mut view, 80, 13);
    let has = |name: &str| shown.iter().any(|line| line.starts_with(name));
    assert!(has("▶ decode") && has("  batch"), "{}", shown.join("\n"));
}

/// Names are those of files and closures of anybody.
#[test]
fn a_name_cannot_talk_to_the_terminal() {
    let mut answer = answer();
    let evil = "\u{1b}]0;title\u{7}\n\u{9b}2J";
    answer["program"] = json!(evil);
    answer["stats"]["nodes"][0]["name"] = json!(evil);
    answer["stats"]["bottleneck"] = json!(evil);
    answer["stats"]["skipped"] = json!(2);
    answer["stats"]["skips"] = json!([
        { "node": evil, "kind": "corrupt", "items": 2, "first": evil, "last": evil }
    ]);
    let page = draw::page(&view(&answer));
    assert!(!page.contains(['\u{1b}', '\u{7}', '\u{9b}']), "{page:?}");
    assert!(page.contains("skipped 2, the last: �]0;title��"), "{page}");
}

#[test]
fn keys_do_what_they_say() {
    let mut answer = answer();
    let mut view = view(&answer);
    assert_eq!(key('q', &mut view), Pressed::End);
    let ctrl_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    assert_eq!(press(ctrl_c, &mut view), Pressed::End);

    key('s', &mut view);
    assert_eq!(view.sort, Sort::Busy);
    assert!(screen(&mut view, 80, 24)[6].starts_with("▶ decode"));
    for _ in 0..3 {
        key('s', &mut view);
    }
    assert_eq!(view.sort, Sort::Graph);

    // From now on: 4 seconds with 1000 items.
    key('r', &mut view);
    (answer["stats"]["wall"], answer["stats"]["delivered"]) = (json!(14.0), json!(6000));
    view.update(parse(&answer));
    let (stats, since) = view.figures().unwrap();
    assert_eq!((stats.items_per_second(), &*since), (250.0, "last 4 s"));

    key('p', &mut view);
    answer["stats"]["wall"] = json!(20.0);
    view.update(parse(&answer));
    assert_eq!(view.figures().unwrap().1, "last 4 s");
    assert!(screen(&mut view, 80, 24)[0].contains("PAUSED"));
    key('p', &mut view);
    view.update(parse(&answer));
    assert_eq!(view.figures().unwrap().1, "last 10 s");
    key('e', &mut view);
    assert_eq!(view.figures().unwrap().1, "whole epoch");
}

#[test]
fn recent_figures_are_those_of_ten_seconds_and_of_one_epoch() {
    let mut answer = answer();
    let mut view = view(&answer);
    for wall in 11..40 {
        answer["stats"]["wall"] = json!(f64::from(wall));
        view.update(parse(&answer));
    }
    assert_eq!(view.figures().unwrap().1, "last 10 s");

    key('r', &mut view);
    (answer["epoch"], answer["stats"]["wall"]) = (json!(4), json!(1.0));
    view.update(parse(&answer));
    assert_eq!(view.figures().unwrap().1, "whole epoch");

    answer["running"] = json!(false);
    view.update(parse(&answer));
    assert!(screen(&mut view, 80, 24)[0].contains("epoch 4, ended"));
}

#[test]
fn a_loader_that_hangs_or_has_ended_is_said_so() {
    let mut view = view(&answer());
    view.contact = Contact::Silent(std::time::Duration::from_secs(65));
    assert_eq!(
        screen(&mut view, 80, 24)[1],
        " the loader has not answered for 1:05"
    );
    view.contact = Contact::Lost("it has ended".to_owned());
    let shown = screen(&mut view, 80, 24);
    assert_eq!(shown[1], " no more figures from the loader: it has ended");
    assert!(shown.iter().any(|line| line.starts_with("▶ decode")));

    let mut answer = answer();
    (answer["epoch"], answer["stats"]) = (json!(null), json!(null));
    let mut view = View::new(Path::new("7-0.sock"), None, 1);
    assert_eq!(
        screen(&mut view, 80, 24)[2],
        " waiting for the first figures"
    );
    view.update(parse(&answer));
    let shown = screen(&mut view, 80, 24);
    assert_eq!(
        (&*shown[2], &*shown[4]),
        (" no epoch has begun", " loader: seed 0")
    );
}
