// The dialects, and which of them the operator's rules switch on.
import type { Rules } from '../rules/namespace-rules.ts';
import { ack } from './ack.ts';
import { baidu } from './baidu.ts';
import { huawei, tke, volcengine } from './clouds.ts';
import { cotenant } from './cotenant.ts';
import type { Dialect } from './dialect.ts';
import { kai } from './kai.ts';
import { koordinator } from './koordinator.ts';
import { kubeshare } from './kubeshare.ts';
import { metagpu } from './metagpu.ts';
import { nos } from './nos.ts';
import { nvidia } from './nvidia.ts';
import { hami, vgpuManager, volcano } from './vgpu.ts';

/** Those of other systems. A resource of two of them (`nvidia.com/gpu`) is read by the first that is on. */
export const FOREIGN_DIALECTS: readonly Dialect[] = [
  ack,
  metagpu,
  hami,
  volcano,
  vgpuManager,
  tke,
  koordinator,
  kai,
  kubeshare,
  nos,
  nvidia,
  huawei,
  volcengine,
  baidu,
];

/** Our own names, always, and the dialects that are switched on. Resources of the others are not read. */
export function dialectsOf(rules: Rules): readonly Dialect[] {
  return [cotenant, ...FOREIGN_DIALECTS.filter((dialect) => rules.dialects.some((name) => name === dialect.name))];
}
