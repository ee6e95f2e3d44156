//! The ratios as bars (SVG): green where a goal is met, red where it is missed, grey where there is no goal; a black
//! line marks the goal.

use std::fmt::Write;

use super::measure::{Goal, Row};

const ROW_HEIGHT: f64 = 22.0;
const LABEL_WIDTH: f64 = 480.0;
/// The width of a ratio of 1.
const RATIO_WIDTH: f64 = 380.0;
/// The maximum ratio that a bar shows; longer bars are cut.
const MAX_RATIO: f64 = 1.5;
const TOP: f64 = 50.0;

/// Draws all rows that have a ratio.
pub fn plot(rows: &[Row]) -> String {
    let bars: Vec<(&Row, f64)> = rows.iter().filter_map(|row| Some((row, row.ratio()?))).collect();
    let (width, height) = (LABEL_WIDTH + RATIO_WIDTH * MAX_RATIO + 80.0, TOP + ROW_HEIGHT * bars.len() as f64 + 20.0);
    let mut svg = format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" font-size="12">
<rect width="100%" height="100%" fill="white"/>
<text x="10" y="20" font-size="15">Ours divided by upstream's: shorter is better, 1 is upstream</text>
"##
    );
    let bottom = height - 15.0;
    for (value, label) in [(0.0, "0"), (0.5, "0.5"), (1.0, "1"), (1.5, "1.5")] {
        let x = LABEL_WIDTH + value * RATIO_WIDTH;
        let _ = writeln!(svg, r##"<line x1="{x}" y1="{TOP}" x2="{x}" y2="{bottom}" stroke="#ccc"/>"##);
        let _ = writeln!(svg, r##"<text x="{x}" y="{}" text-anchor="middle" fill="#666">{label}</text>"##, TOP - 6.0);
    }
    for (index, (row, ratio)) in bars.into_iter().enumerate() {
        bar(&mut svg, TOP + ROW_HEIGHT * index as f64, row, ratio);
    }
    svg + "</svg>\n"
}

fn bar(svg: &mut String, y: f64, row: &Row, ratio: f64) {
    let fill = match row.met() {
        Some(true) => "#3a9d5d",
        Some(false) => "#c9403a",
        None => "#9aa5b1",
    };
    let length = ratio.min(MAX_RATIO) * RATIO_WIDTH;
    let (text, middle) = (y + 15.0, LABEL_WIDTH - 10.0);
    let label = format!("{}, {}: {}", row.mode.name(), row.scenario(), row.metric.name());
    let _ = writeln!(svg, r#"<text x="{middle}" y="{text}" text-anchor="end">{label}</text>"#);
    let _ = writeln!(svg, r#"<rect x="{LABEL_WIDTH}" y="{}" width="{length}" height="15" fill="{fill}"/>"#, y + 3.0);
    if let Some(Goal::Ratio(goal)) = row.goal() {
        let (x, end) = (LABEL_WIDTH + goal * RATIO_WIDTH, y + ROW_HEIGHT);
        let _ = writeln!(svg, r#"<line x1="{x}" y1="{y}" x2="{x}" y2="{end}" stroke="black" stroke-width="2"/>"#);
    }
    let _ = writeln!(svg, r#"<text x="{}" y="{text}">{ratio:.2}</text>"#, LABEL_WIDTH + length + 6.0);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::measure::{Metric, Scenario};
    use crate::bench::subject::Mode;

    #[test]
    fn bars_show_ratio_and_verdict_and_are_cut() {
        let row = |ours, upstream| Row {
            mode: Mode::Raised,
            scenario: Scenario::Create,
            case: None,
            metric: Metric::Wall,
            ours: Some(ours),
            upstream,
        };
        let svg = plot(&[row(1.0, Some(2.0)), row(9.0, Some(3.0)), row(1.0, None)]);
        assert_eq!(svg.matches("raised, create: wall time (s)").count(), 2, "no bar without a ratio");
        assert!(svg.contains(r##"width="190" height="15" fill="#3a9d5d""##), "{svg}");
        assert!(svg.contains(r##"width="570" height="15" fill="#c9403a""##), "{svg}");
        assert!(svg.contains(">3.00<"), "{svg}");
    }
}
