// Reads the names and version numbers of CUDA's driver entry points out of an installed toolkit's headers and prints
// them as facts (one row per versioned entry point). It keeps no text of those headers: only names and numbers.
// What the rows mean for the quota is not decided here (native/interposer/verbs.txt).
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';

/** One look-up row: asking cuGetProcAddress for `base` at `version` (and stream mode) answers `symbol`. */
export type VersionRow = { base: string; version: number; perThread: boolean; symbol: string };

/** `rows` are what typed headers know; `bare` are exported names that only the profiler's list knows. */
export type DriverFacts = { rows: VersionRow[]; bare: string[] };

const TYPEDEF_HEADERS = [
  'cudaTypedefs.h',
  'cudaProfilerTypedefs.h',
  'cudaGLTypedefs.h',
  'cudaEGLTypedefs.h',
  'cudaVDPAUTypedefs.h',
];
const CALLBACK_HEADER = 'cupti_driver_cbid.h';
// 32-bit transition names and other operating systems' graphics: no Linux x86-64 or arm64 driver exports them.
const FOREIGN = /^cu(64|D3D|NVN|WGL|GraphicsD3D)/;

/** The toolkit's include folders (one may lack the profiler's header) or undefined when no toolkit is there. */
export function findToolkitHeaders(candidates: readonly string[]): string[] | undefined {
  const has = (name: string) => candidates.filter((folder) => existsSync(join(folder, name)));
  const typed = has('cudaTypedefs.h')[0];
  const callbacks = has(CALLBACK_HEADER)[0];
  return typed && callbacks ? [typed, callbacks] : undefined;
}

/**
 * Derives the rows. Rule that reproduces every row of CUDA 13.0: sort a base name's plain versions; the k-th (k >= 2)
 * is exported as `name_v<k>`; a per-thread row belongs to the newest plain version that is not above it, unless the
 * profiler's list only knows the unsuffixed per-thread name.
 */
export function extractDriverFacts(folders: readonly string[]): DriverFacts {
  const read = (name: string): string => {
    const folder = folders.find((candidate) => existsSync(join(candidate, name)));
    return folder ? readFileSync(join(folder, name), 'utf8') : '';
  };
  const traced = new Set<string>();
  for (const match of read(CALLBACK_HEADER).matchAll(/CUPTI_DRIVER_TRACE_CBID_(cu[A-Z]\w+)/g)) {
    if (match[1] && !FOREIGN.test(match[1])) traced.add(match[1]);
  }
  const versions = new Map<string, Map<string, { version: number; suffix: string }>>();
  for (const header of TYPEDEF_HEADERS) {
    for (const [, base, version, suffix = ''] of read(header).matchAll(/PFN_(cu\w+?)_v(\d+)(_ptsz|_ptds)?\)/g)) {
      if (!base || !version) continue;
      const known = versions.get(base) ?? new Map();
      known.set(version + suffix, { version: Number(version), suffix });
      versions.set(base, known);
    }
  }
  const rows: VersionRow[] = [];
  for (const [base, known] of versions) {
    const entries = [...known.values()];
    const plain = entries.filter((entry) => !entry.suffix).map((entry) => entry.version);
    plain.sort((a, b) => a - b);
    for (const { version, suffix } of entries) {
      const generation = plain.filter((candidate) => candidate <= version).length;
      const numbered = base + (generation > 1 ? `_v${generation}` : '') + suffix;
      const symbol = !traced.has(numbered) && traced.has(base + suffix) ? base + suffix : numbered;
      rows.push({ base, version, perThread: suffix !== '', symbol });
    }
  }
  rows.sort(byBaseThenVersion);
  const typed = new Set(rows.map((row) => row.symbol));
  return { rows, bare: [...traced].filter((symbol) => !typed.has(symbol)).sort() };
}

function byBaseThenVersion(a: VersionRow, b: VersionRow): number {
  if (a.base !== b.base) return a.base < b.base ? -1 : 1;
  return a.version - b.version || Number(a.perThread) - Number(b.perThread);
}

/** The committed text form: `base version stream symbol`, and `base - - symbol` for a name without a typed row. */
export function formatDriverFacts(facts: DriverFacts): string {
  const lines = facts.rows.map((row) =>
    [row.base, row.version, row.perThread ? 'per-thread' : 'legacy', row.symbol].join(' '),
  );
  return [...lines, ...facts.bare.map((symbol) => `${symbol} - - ${symbol}`)].join('\n');
}

if (process.argv[1] && import.meta.url === pathToFileURL(process.argv[1]).href) {
  const folders = process.argv.slice(2);
  const found = findToolkitHeaders(folders);
  if (!found) {
    console.error(`usage: node extract.ts INCLUDE_DIR...; ${TYPEDEF_HEADERS[0]} and ${CALLBACK_HEADER} must be there`);
    process.exit(2);
  }
  console.log(formatDriverFacts(extractDriverFacts(found)));
}
