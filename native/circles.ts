// Fails on a circle of calls between C files, of includes between files, or of both between folders of native/.
// `node native/circles.ts` builds what is out of date and reads calls from the symbol tables of the object files. Only
// functions count: a table of function pointers is how a file below calls one above it
// (interposer/engine/core/hooks.h).
import { spawnSync } from 'node:child_process';
import { existsSync, readFileSync } from 'node:fs';
import { dirname, join, normalize, relative } from 'node:path';
import { pathToFileURL } from 'node:url';

const ROOT = import.meta.dirname;

/** Circles that are left to cut. Cutting a part of one is fine; an entry without any circle left fails, too. */
const KNOWN: readonly string[] = [];

export type Graph = ReadonlyMap<string, ReadonlySet<string>>;

export function graphOf(edges: Iterable<readonly [from: string, to: string]>): Graph {
  const graph = new Map<string, Set<string>>();
  for (const [from, to] of edges) {
    if (from === to) continue;
    graph.set(from, (graph.get(from) ?? new Set()).add(to));
  }
  return graph;
}

/** Groups of nodes that reach one another (Tarjan's strongly connected components of two nodes or more), sorted. */
export function findCircles(graph: Graph): string[][] {
  const order = new Map<string, number>();
  const lowest = new Map<string, number>();
  const stack: string[] = [];
  const circles: string[][] = [];
  const visit = (node: string) => {
    order.set(node, order.size);
    lowest.set(node, order.size - 1);
    stack.push(node);
    for (const next of graph.get(node) ?? []) {
      if (!order.has(next)) visit(next);
      if (stack.includes(next)) lowest.set(node, Math.min(lowest.get(node) ?? 0, lowest.get(next) ?? 0));
    }
    if (lowest.get(node) !== order.get(node)) return;
    const circle = stack.splice(stack.indexOf(node));
    if (circle.length > 1) circles.push(circle.toSorted());
  };
  for (const node of graph.keys()) if (!order.has(node)) visit(node);
  return circles.toSorted();
}

export type Symbols = { readonly defined: readonly string[]; readonly called: readonly string[] };

/** Global functions that an object file defines, and all that it refers to, from the output of `nm`. */
export function parseSymbols(text: string): Symbols {
  const rows = text.split('\n').map((line) => line.trim().split(/\s+/));
  return {
    defined: rows.filter(([, type]) => type === 'T' || type === 'W').map(([, , name]) => name ?? ''),
    called: rows.filter(([type]) => type === 'U').map(([, name]) => name ?? ''),
  };
}

const topFolder = (file: string) => file.split('/')[0];

/** Pairs of calling and called object file. If several programs define a name, the one in the caller's part of native/
 * counts. */
export function callsBetween(objects: ReadonlyMap<string, Symbols>): (readonly [string, string])[] {
  const definers = new Map<string, string[]>();
  for (const [file, { defined }] of objects) {
    for (const name of defined) definers.set(name, [...(definers.get(name) ?? []), file]);
  }
  return [...objects].flatMap(([file, { called }]) =>
    called.flatMap((name) => {
      const all = definers.get(name) ?? [];
      const near = all.filter((other) => topFolder(other) === topFolder(file));
      const found = near.length > 0 ? near : all;
      return found.length === 1 ? [[file, found[0] ?? ''] as const] : [];
    }),
  );
}

/** Files that a source includes by a path of its own, relative to native/. */
export function includesOf(file: string, text: string): string[] {
  return [...text.matchAll(/^\s*#\s*include "([^"]+)"/gm)].map(([, path = '']) => normalize(join(dirname(file), path)));
}

/** Are all words of a circle, its kind included, words of the other one? */
export const isWithin = (circle: string, other: string) =>
  circle.split(' ').every((word) => other.split(' ').includes(word));

function run(command: string, args: readonly string[]): string {
  const result = spawnSync(command, args, { cwd: ROOT, encoding: 'utf8', maxBuffer: 1 << 28 });
  if (result.status !== 0) {
    console.error(`circles are NOT checked: ${command} ${args.slice(0, 4).join(' ')}: ${result.stderr.slice(-2000)}`);
    process.exit(2);
  }
  return result.stdout;
}

/** Generated tables bind names to the functions that serve them: they join what is apart, and are left out. */
const isSource = (file: string) => /\.(c|cc|h)$/.test(file) && !file.includes('generated/');

function readTree(): { calls: (readonly [string, string])[]; includes: (readonly [string, string])[] } {
  const files = run('git', ['ls-files', '--cached', '--others', '--exclude-standard', '.'])
    .split('\n')
    .filter((file) => isSource(file) && existsSync(join(ROOT, file)));
  const includes = files.flatMap((file) =>
    includesOf(file, readFileSync(join(ROOT, file), 'utf8'))
      .filter(isSource)
      .map((other) => [file, other] as const),
  );
  run('make', ['--no-print-directory', '-j2', 'all']);
  const objects = new Map<string, Symbols>();
  for (const file of files.filter((name) => !name.endsWith('.h'))) {
    const object = join(ROOT, 'build/o', `${file}.o`);
    if (existsSync(object)) objects.set(file, parseSymbols(run('nm', [object])));
  }
  return { calls: callsBetween(objects), includes };
}

if (process.argv[1] && import.meta.url === pathToFileURL(process.argv[1]).href) {
  const { calls, includes } = readTree();
  const folders = [...calls, ...includes].map(([from, to]) => [dirname(from), dirname(to)] as const);
  const found = [
    ...findCircles(graphOf(calls)).map((circle) => `calls: ${circle.join(' ')}`),
    ...findCircles(graphOf(includes)).map((circle) => `includes: ${circle.join(' ')}`),
    ...findCircles(graphOf(folders)).map((circle) => `folders: ${circle.join(' ')}`),
  ];
  const fresh = found.filter((circle) => !KNOWN.some((known) => isWithin(circle, known)));
  const gone = KNOWN.filter((known) => !found.some((circle) => isWithin(circle, known)));
  for (const circle of fresh) {
    console.error(`circle of ${circle}`);
    const members = new Set(circle.split(' ').slice(1));
    const edges = circle.startsWith('folders')
      ? [...calls, ...includes]
      : circle.startsWith('calls')
        ? calls
        : includes;
    const place = circle.startsWith('folders') ? dirname : (file: string) => file;
    const shown = edges.filter(
      ([from, to]) => members.has(place(from)) && members.has(place(to)) && place(from) !== place(to),
    );
    for (const edge of new Set(shown.map((pair) => pair.join(' -> ')))) console.error(`  ${edge}`);
  }
  for (const circle of gone)
    console.error(`no circle any more, remove it from KNOWN in ${relative('.', import.meta.filename)}: ${circle}`);
  if (fresh.length + gone.length > 0) process.exit(1);
  console.log(`no circles beyond ${KNOWN.length} known ones`);
}
