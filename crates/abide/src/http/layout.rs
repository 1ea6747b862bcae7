//! Where the nodes of a graph stand and how its edges run: in layers from top to bottom, each node below all it waits for,
//! ordered so that few edges cross. Browsers only draw.

/// Between two layers, and between two nodes of a layer.
const LAYER_GAP: f64 = 56.0;
const NODE_GAP: f64 = 32.0;
/// The room that a long edge keeps between the nodes of a layer that it passes.
const PASSING: f64 = 16.0;
/// How often layers are put in order and nodes moved towards their neighbours; more changes nothing that can be seen.
const SWEEPS: usize = 8;
/// With more places than this where long edges pass layers, edges run straight: nobody could follow them anyway.
const MOST_PASSING: usize = 4_000;

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Point {
    pub x: f64,
    pub y: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Size {
    pub width: f64,
    pub height: f64,
}

/// Upper left corners of the nodes, points of the edges, and the room that all of it takes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Layout {
    pub nodes: Vec<Point>,
    pub edges: Vec<Vec<Point>>,
    pub width: f64,
    pub height: f64,
}

/// Lays a graph out. Edges are pairs of indexes into `sizes`; one that would close a circle bends nothing.
pub fn lay_out(sizes: &[Size], edges: &[(usize, usize)]) -> Layout {
    let layer_of = layers(sizes.len(), edges);
    let mut grid = Grid::new(sizes, edges, &layer_of);
    grid.order();
    grid.place();
    grid.finish(sizes, edges, &layer_of)
}

/// The length of the longest way to each node. Nodes of a circle stand below what leads into it.
fn layers(count: usize, edges: &[(usize, usize)]) -> Vec<usize> {
    let mut layer = vec![0; count];
    let mut missing = vec![0usize; count];
    for (_, to) in edges {
        missing[*to] += 1;
    }
    let mut ready: Vec<usize> = (0..count).filter(|node| missing[*node] == 0).collect();
    while let Some(node) = ready.pop() {
        for (_, to) in edges.iter().filter(|(from, _)| *from == node) {
            layer[*to] = layer[*to].max(layer[node] + 1);
            missing[*to] -= 1;
            if missing[*to] == 0 {
                ready.push(*to);
            }
        }
    }
    layer
}

/// A node, or the place where a long edge passes a layer.
#[derive(Clone, Debug)]
struct Cell {
    width: f64,
    /// The middle.
    x: f64,
    above: Vec<usize>,
    below: Vec<usize>,
}

/// All cells, and which stand in which layer from left to right.
struct Grid {
    cells: Vec<Cell>,
    layers: Vec<Vec<usize>>,
    /// Of each edge, the cells where it passes layers.
    passing: Vec<Vec<usize>>,
}

impl Grid {
    fn new(sizes: &[Size], edges: &[(usize, usize)], layer_of: &[usize]) -> Grid {
        let cell = |width: f64| Cell { width, x: 0.0, above: Vec::new(), below: Vec::new() };
        let mut cells: Vec<Cell> = sizes.iter().map(|size| cell(size.width)).collect();
        let mut layers = vec![Vec::new(); layer_of.iter().max().map_or(0, |last| last + 1)];
        for (node, layer) in layer_of.iter().enumerate() {
            layers[*layer].push(node);
        }
        let spans = edges.iter().map(|(from, to)| layer_of[*to].saturating_sub(layer_of[*from] + 1));
        let straight = spans.sum::<usize>() > MOST_PASSING;
        let mut passing = vec![Vec::new(); edges.len()];
        for ((from, to), passed) in edges.iter().zip(&mut passing) {
            let mut last = *from;
            let between = if straight { 0..0 } else { layer_of[*from] + 1..layer_of[*to].max(layer_of[*from] + 1) };
            for layer in between {
                let new = cells.len();
                cells.push(cell(PASSING));
                layers[layer].push(new);
                link(&mut cells, last, new);
                passed.push(new);
                last = new;
            }
            if layer_of[*to] > layer_of[*from] {
                link(&mut cells, last, *to);
            }
        }
        Grid { cells, layers, passing }
    }

    /// Orders each layer by the middle of its neighbours, down and up, and keeps the order with the fewest crossings.
    fn order(&mut self) {
        let mut best = (self.crossings(), self.layers.clone());
        for sweep in 0..SWEEPS {
            let down = sweep % 2 == 0;
            let count = self.layers.len();
            let order: Vec<usize> =
                if down { (1..count).collect() } else { (0..count.saturating_sub(1)).rev().collect() };
            for layer in order {
                let positions = self.positions(if down { layer - 1 } else { layer + 1 });
                let cells = &self.cells;
                let middle = |position: usize, cell: usize| {
                    let near = if down { &cells[cell].above } else { &cells[cell].below };
                    let known: Vec<f64> = near.iter().filter_map(|one| positions.get(one).copied()).collect();
                    // A cell with nothing on that side stays where it is.
                    if known.is_empty() { position as f64 } else { known.iter().sum::<f64>() / known.len() as f64 }
                };
                let mut ordered: Vec<(f64, usize)> =
                    self.layers[layer].iter().enumerate().map(|(n, cell)| (middle(n, *cell), *cell)).collect();
                ordered.sort_by(|one, other| one.0.total_cmp(&other.0));
                self.layers[layer] = ordered.into_iter().map(|(_, cell)| cell).collect();
            }
            let crossings = self.crossings();
            if crossings < best.0 {
                best = (crossings, self.layers.clone());
            }
        }
        self.layers = best.1;
    }

    fn positions(&self, layer: usize) -> std::collections::HashMap<usize, f64> {
        self.layers[layer].iter().enumerate().map(|(position, cell)| (*cell, position as f64)).collect()
    }

    fn crossings(&self) -> usize {
        let mut all = 0;
        for layer in 1..self.layers.len() {
            let above = self.positions(layer - 1);
            // The ends of edges above, in the order of their ends below: every pair out of order is a crossing.
            let mut ends: Vec<f64> = Vec::new();
            for cell in &self.layers[layer] {
                let mut own: Vec<f64> =
                    self.cells[*cell].above.iter().filter_map(|one| above.get(one).copied()).collect();
                own.sort_by(f64::total_cmp);
                all += own.iter().map(|end| ends.iter().filter(|before| *before > end).count()).sum::<usize>();
                ends.extend(own);
            }
        }
        all
    }

    /// Moves every cell towards the middle of its neighbours, as far as its own neighbours in the layer let it.
    fn place(&mut self) {
        for layer in 0..self.layers.len() {
            self.settle(layer, |_| None);
        }
        for sweep in 0..2 * SWEEPS {
            let down = sweep % 2 == 0;
            let count = self.layers.len();
            let order: Vec<usize> =
                if down { (1..count).collect() } else { (0..count.saturating_sub(1)).rev().collect() };
            for layer in order {
                let wanted: Vec<Option<f64>> = self.layers[layer].iter().map(|cell| self.wanted(*cell, down)).collect();
                self.settle(layer, |n| wanted[n]);
            }
        }
    }

    fn wanted(&self, cell: usize, down: bool) -> Option<f64> {
        let near = if down { &self.cells[cell].above } else { &self.cells[cell].below };
        let sum: f64 = near.iter().map(|one| self.cells[*one].x).sum();
        (!near.is_empty()).then(|| sum / near.len() as f64)
    }

    /// Puts the cells of a layer as near as possible to where they want to be, in their order and with their gaps: the
    /// least squares under these bounds, found by pooling neighbours that would overlap.
    fn settle(&mut self, layer: usize, wanted: impl Fn(usize) -> Option<f64>) {
        let row = &self.layers[layer];
        let mut offset = 0.0;
        let mut offsets = Vec::with_capacity(row.len());
        // Each pool is (sum of wishes without offsets, how many cells).
        let mut pools: Vec<(f64, usize)> = Vec::new();
        for (n, cell) in row.iter().enumerate() {
            if n > 0 {
                offset += (self.cells[row[n - 1]].width + self.cells[*cell].width) / 2.0 + NODE_GAP;
            }
            offsets.push(offset);
            pools.push((wanted(n).unwrap_or(self.cells[*cell].x) - offset, 1));
            while let [.., one, other] = pools[..]
                && one.0 / one.1 as f64 > other.0 / other.1 as f64
            {
                pools.truncate(pools.len() - 2);
                pools.push((one.0 + other.0, one.1 + other.1));
            }
        }
        let middles = pools.iter().flat_map(|(sum, count)| std::iter::repeat_n(sum / *count as f64, *count));
        let places: Vec<f64> = middles.zip(&offsets).map(|(middle, offset)| middle + offset).collect();
        for (cell, x) in self.layers[layer].clone().into_iter().zip(places) {
            self.cells[cell].x = x;
        }
    }

    fn finish(&self, sizes: &[Size], edges: &[(usize, usize)], layer_of: &[usize]) -> Layout {
        let left = self.cells.iter().map(|cell| cell.x - cell.width / 2.0).fold(f64::INFINITY, f64::min);
        let right = self.cells.iter().map(|cell| cell.x + cell.width / 2.0).fold(0.0, f64::max);
        let mut tops = Vec::with_capacity(self.layers.len());
        let mut height: f64 = 0.0;
        for row in &self.layers {
            tops.push(height);
            let tallest = row.iter().filter_map(|cell| sizes.get(*cell)).map(|size| size.height).fold(0.0, f64::max);
            height += tallest + LAYER_GAP;
        }
        let middle = |cell: usize| self.cells[cell].x - left;
        let nodes: Vec<Point> = (0..sizes.len())
            .map(|node| Point { x: round(middle(node) - sizes[node].width / 2.0), y: round(tops[layer_of[node]]) })
            .collect();
        let run = |((from, to), passed): (&(usize, usize), &Vec<usize>)| {
            let start = Point { x: round(middle(*from)), y: round(nodes[*from].y + sizes[*from].height) };
            let end = Point { x: round(middle(*to)), y: nodes[*to].y };
            let between = passed.iter().enumerate().map(|(n, cell)| {
                let layer = layer_of[*from] + 1 + n;
                Point { x: round(middle(*cell)), y: round((tops[layer] + tops[layer + 1] - LAYER_GAP) / 2.0) }
            });
            std::iter::once(start).chain(between).chain([end]).collect()
        };
        let edges = edges.iter().zip(&self.passing).map(run).collect();
        let width = if left.is_finite() { round(right - left) } else { 0.0 };
        Layout { nodes, edges, width, height: round((height - LAYER_GAP).max(0.0)) }
    }
}

fn link(cells: &mut [Cell], above: usize, below: usize) {
    cells[above].below.push(below);
    cells[below].above.push(above);
}

/// Tenths are enough for a screen.
fn round(number: f64) -> f64 {
    (number * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(count: usize, edges: &[(usize, usize)]) -> Layout {
        lay_out(&vec![Size { width: 160.0, height: 56.0 }; count], edges)
    }

    fn overlap(layout: &Layout) -> bool {
        let hits = |a: &Point, b: &Point| (a.x - b.x).abs() < 160.0 && (a.y - b.y).abs() < 56.0;
        (0..layout.nodes.len()).any(|n| layout.nodes[..n].iter().any(|other| hits(other, &layout.nodes[n])))
    }

    #[test]
    fn a_chain_is_a_straight_line_down() {
        let layout = of(3, &[(0, 1), (1, 2)]);
        assert!(layout.nodes.iter().all(|node| node.x == 0.0));
        assert_eq!(layout.nodes.iter().map(|node| node.y).collect::<Vec<_>>(), [0.0, 112.0, 224.0]);
        assert_eq!(layout.edges[0], [Point { x: 80.0, y: 56.0 }, Point { x: 80.0, y: 112.0 }]);
        assert_eq!((layout.width, layout.height), (160.0, 280.0));
    }

    #[test]
    fn branches_stand_side_by_side_below_and_above_their_middle() {
        let layout = of(4, &[(0, 1), (0, 2), (1, 3), (2, 3)]);
        assert_eq!(layout.nodes[1].y, layout.nodes[2].y);
        assert_eq!(layout.nodes[0].x, layout.nodes[3].x);
        assert_eq!(layout.nodes[0].x * 2.0, layout.nodes[1].x + layout.nodes[2].x);
    }

    #[test]
    fn crossed_branches_are_uncrossed() {
        // 0 → 3 and 1 → 2 would cross in the order in which they stand.
        let layout = of(4, &[(0, 3), (1, 2)]);
        let right = |a: usize, b: usize| layout.nodes[a].x > layout.nodes[b].x;
        assert_eq!(right(0, 1), right(3, 2));
    }

    #[test]
    fn a_long_edge_goes_around_what_it_passes() {
        let layout = of(3, &[(0, 1), (1, 2), (0, 2)]);
        let [_, passed, _] = layout.edges[2][..] else { panic!("{:?}", layout.edges[2]) };
        let node = layout.nodes[1];
        assert!(passed.x < node.x || passed.x > node.x + 160.0, "{passed:?} is in {node:?}");
    }

    #[test]
    fn two_hundred_nodes_of_any_shape_never_overlap() {
        // A fixed multiplier makes up edges that look random.
        let mut seed = 7usize;
        let mut next = |below: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % below
        };
        let edges: Vec<_> = (1..200).flat_map(|to| [(next(to), to), (next(to), to)]).collect();
        let layout = of(200, &edges);
        assert!(!overlap(&layout));
        for (n, (from, to)) in edges.iter().enumerate() {
            assert!(layout.nodes[*from].y < layout.nodes[*to].y, "edge {n} goes up");
        }
        let everything: Vec<_> = (0..200).flat_map(|to| (0..to).map(move |from| (from, to))).collect();
        assert!(!overlap(&of(200, &everything)));
        assert_eq!(of(0, &[]), Layout::default());
        assert!(!overlap(&of(2, &[(0, 1), (1, 0)])), "a circle is no end of it");
    }
}
