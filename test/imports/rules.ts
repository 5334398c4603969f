// Which folder may import which. A file imports from its own folder and from folders of lower layers, so no circle of
// folders is possible, and between a folder and its subfolders imports run one way only.

/** From low to high. Folders of one layer do not import each other. */
export const LAYERS: readonly (readonly string[])[] = [
  ['src/common'],
  ['src/api'],
  ['src/policy'],
  ['src/request/rules'],
  ['src/request/dialects'],
  ['src/request', 'src/placement'],
  // Edges: other programs, files, processes.
  ['src/kube'],
  ['src/serving'],
  ['webhook/certificates'],
  ['src/agent/os'],
  ['src/agent/sampling'],
  ['src/agent/grants', 'src/agent/kubelet/cdi', 'src/agent/kubelet/device-plugin'],
  ['src/agent/attribution', 'src/agent/compute'],
  ['src/agent/usage', 'src/agent/isolation/driver-limits'],
  ['src/agent/enforcement', 'src/agent/isolation/canary'],
  ['src/agent/isolation', 'src/agent/counters', 'src/agent/kubelet/nri'],
  ['src/agent/snapshot'],
  ['src/agent/snapshot/ipc', 'src/agent/allocation'],
  ['src/agent/kubelet/csi'],
  ['src/agent/kubelet', 'src/exporter/collectors'],
  ['src/agent/containers'],
  ['src/exporter/compat'],
  ['src/exporter'],
  ['src/scheduler/decisions', 'src/scheduler/leadership'],
  ['src/scheduler/allocations'],
  ['src/scheduler/evictions', 'src/scheduler/groups'],
  // Entry points: the daemons, then the command line that starts them.
  ['webhook', 'src/scheduler', 'src/agent'],
  ['src/cli/lib'],
  ['src/cli/cluster', 'src/cli/prometheus'],
  ['src/cli/output', 'src/cli/doctor'],
  ['src/cli/options'],
  [
    'src/cli/commands/grants',
    'src/cli/commands/maintenance',
    'src/cli/commands/planning',
    'src/cli/commands/status',
    'src/cli/commands/usage',
    'src/cli/daemons',
    'src/cli/demo',
  ],
  ['src/cli'],
  ['dashboards/lib'],
  ['dashboards/alerts'],
  ['dashboards'],
];

/** Folders beside the layers that anything may import from. */
const OUTSIDE = ['native'];

export type Import = { readonly from: string; readonly to: string };

/** Imports against the order, each as `from -> to`, and folders that have no layer. Paths are relative to the root. */
export function importsAgainstOrder(imports: readonly Import[], layers = LAYERS): string[] {
  const layerOf = new Map(layers.flatMap((folders, layer) => folders.map((folder) => [folder, layer] as const)));
  const wrong = new Set<string>();
  for (const { from, to } of imports) {
    const source = folderOf(from);
    const target = folderOf(to);
    if (source === target || OUTSIDE.includes(target)) continue;
    const layer = layerOf.get(source);
    const below = layerOf.get(target);
    if (layer === undefined) wrong.add(`${source} has no layer`);
    else if (below === undefined || below >= layer) wrong.add(`${from} -> ${to}`);
  }
  return [...wrong].sort();
}

/** What fails the check: violations that are not known, and known ones that are gone. The list may only shrink. */
export function importProblems(violations: readonly string[], known: readonly string[]): string[] {
  return [
    ...violations.filter((one) => !known.includes(one)).map((one) => `${one}: against the order of folders`),
    ...known.filter((one) => !violations.includes(one)).map((one) => `${one}: is gone; remove it from the list`),
  ];
}

const folderOf = (path: string) => path.slice(0, Math.max(0, path.lastIndexOf('/')));
