//! Reports as a picture: score and seconds against the values of a group, a line for each run. Pure; SVG as text.

use std::fmt::Write as _;

use super::report::{Report, Scores};

const WIDTH: f64 = 360.0;
const HEIGHT: f64 = 240.0;
const LEFT: f64 = 46.0;
const TOP: f64 = 34.0;
/// Colours that also people tell apart who see few.
const COLORS: [&str; 6] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00"];

/// One value of a run at a place on the axis, with the ends of its interval.
struct Point {
    at: f64,
    value: (f64, f64, f64),
}

/// Draws each run's score and its median of seconds against the group's values that are numbers, side by side. Runs of one model
/// and dispatch are one line. Nothing where no run has any number.
#[must_use]
pub fn plot(reports: &[Report], group: &str) -> Option<String> {
    let mut runs: Vec<(String, Vec<&Report>)> = Vec::new();
    for report in reports {
        let name = format!("{}, {}", report.run.model, report.run.dispatch);
        match runs.iter_mut().find(|(known, _)| *known == name) {
            Some((_, reports)) => reports.push(report),
            None => runs.push((name, vec![report])),
        }
    }
    let with_values = |reports: &[&Report], of: &dyn Fn(&Scores) -> (f64, f64, f64)| -> Vec<Point> {
        let values = reports.iter().filter_map(|report| report.groups.get(group)).flatten();
        let mut points: Vec<Point> =
            values.filter_map(|(value, scores)| Some(Point { at: value.parse().ok()?, value: of(scores) })).collect();
        points.sort_by(|one, other| one.at.total_cmp(&other.at));
        points
    };
    let score = |scores: &Scores| {
        let score = scores.score;
        (100.0 * score.mean, 100.0 * score.low, 100.0 * score.high)
    };
    let seconds = |scores: &Scores| (scores.median_s, scores.median_s, scores.median_s);
    let lines = |of: &dyn Fn(&Scores) -> (f64, f64, f64)| -> Vec<Vec<Point>> {
        runs.iter().map(|(_, reports)| with_values(reports, of)).collect()
    };
    let (scores, times) = (lines(&score), lines(&seconds));
    let all: Vec<f64> = scores.iter().flatten().map(|point| point.at).collect();
    let (least, most) = (all.iter().copied().reduce(f64::min)?, all.iter().copied().reduce(f64::max)?);
    let legend = 20.0 * runs.len() as f64;
    let (wide, high) = (2.0 * (WIDTH + LEFT) + 30.0, TOP + HEIGHT + 56.0 + legend);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{wide}\" height=\"{high}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    panel(&mut svg, 0.0, "score, %, with 95 % intervals", group, &scores, (least, most), 100.0);
    let slowest = times.iter().flatten().map(|point| point.value.0).fold(0.0, f64::max).max(1e-3);
    panel(&mut svg, WIDTH + LEFT + 20.0, "seconds a question, median", group, &times, (least, most), slowest * 1.1);
    for (place, (name, _)) in runs.iter().enumerate() {
        let y = TOP + HEIGHT + 56.0 + 20.0 * place as f64;
        let color = COLORS[place % COLORS.len()];
        let _ = writeln!(
            svg,
            "<rect x=\"{LEFT}\" y=\"{}\" width=\"14\" height=\"4\" fill=\"{color}\"/><text x=\"{}\" y=\"{y}\">{}</text>",
            y - 6.0,
            LEFT + 20.0,
            escaped(name),
        );
    }
    svg.push_str("</svg>\n");
    Some(svg)
}

fn panel(svg: &mut String, x: f64, title: &str, axis: &str, lines: &[Vec<Point>], (least, most): (f64, f64), top: f64) {
    let left = x + LEFT;
    let across = |at: f64| if most > least { left + (at - least) / (most - least) * WIDTH } else { left + WIDTH / 2.0 };
    let up = |value: f64| TOP + HEIGHT - value / top * HEIGHT;
    let _ = writeln!(svg, "<text x=\"{left}\" y=\"{}\" font-weight=\"bold\">{}</text>", TOP - 14.0, escaped(title));
    for quarter in 0..=4 {
        let value = top * f64::from(quarter) / 4.0;
        let y = up(value);
        let shown = if top >= 20.0 { format!("{value:.0}") } else { format!("{value:.2}") };
        let _ = writeln!(
            svg,
            "<line x1=\"{left}\" y1=\"{y}\" x2=\"{}\" y2=\"{y}\" stroke=\"#ddd\"/><text x=\"{}\" y=\"{}\" \
             text-anchor=\"end\">{shown}</text>",
            left + WIDTH,
            left - 6.0,
            y + 4.0,
        );
    }
    let mut places: Vec<f64> = lines.iter().flatten().map(|point| point.at).collect();
    places.sort_by(f64::total_cmp);
    places.dedup();
    for place in places {
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{place}</text>",
            across(place),
            TOP + HEIGHT + 18.0
        );
    }
    let (middle, y) = (left + WIDTH / 2.0, TOP + HEIGHT + 36.0);
    let _ = writeln!(svg, "<text x=\"{middle}\" y=\"{y}\" text-anchor=\"middle\">{}</text>", escaped(axis));
    for (line, color) in lines.iter().zip(COLORS.iter().cycle()) {
        let path: Vec<String> =
            line.iter().map(|point| format!("{:.1},{:.1}", across(point.at), up(point.value.0))).collect();
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"2\"/>",
            path.join(" ")
        );
        for Point { at, value: (value, low, high) } in line {
            let x = across(*at);
            let _ = writeln!(
                svg,
                "<line x1=\"{x:.1}\" y1=\"{:.1}\" x2=\"{x:.1}\" y2=\"{:.1}\" stroke=\"{color}\"/><circle cx=\"{x:.1}\" \
                 cy=\"{:.1}\" r=\"3\" fill=\"{color}\"/>",
                up(*low),
                up(*high),
                up(*value),
            );
        }
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::super::record::tests::{record, run};
    use super::super::record::{Record, Run};
    use super::*;

    #[test]
    fn a_line_for_each_run_and_a_point_for_each_value() {
        let report = |model: &str, least: i32| {
            let records: Vec<Record> = (0..12)
                .map(|place| Record {
                    groups: vec![("windows".to_owned(), (least + place % 3).to_string())],
                    ..record(&place.to_string(), f64::from(place % 2))
                })
                .collect();
            Report::of(Run { model: model.to_owned(), ..run("parallel") }, &records)
        };
        // Two runs of one model are one line.
        let svg = plot(&[report("a<b", 1), report("a<b", 4), report("other", 1)], "windows").expect("values");
        assert_eq!((svg.matches("<polyline").count(), svg.matches("<circle").count()), (4, 18));
        assert!(svg.contains("a&lt;b, parallel") && !svg.contains("a<b"));
        assert_eq!(plot(&[report("m", 1)], "duration"), None);
        assert_eq!(plot(&[], "windows"), None);
    }
}
