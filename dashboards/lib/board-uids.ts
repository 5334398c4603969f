// Identifiers of the boards in Grafana, from overview to detail. Links contain them, so they never change.

export const BOARD_UIDS = {
  cluster: 'cotenant-cluster',
  node: 'cotenant-node-gpu',
  namespace: 'cotenant-namespace',
  container: 'cotenant-container',
  health: 'cotenant-health',
  exporters: 'cotenant-exporters',
} as const;
export type BoardKey = keyof typeof BOARD_UIDS;
