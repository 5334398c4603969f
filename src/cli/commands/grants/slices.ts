// `cotenant slices`: the grants of this machine that containers of Docker, Podman and containerd can have, and the flags
// of engines that do not read CDI files.
import { SLICE_KIND } from '../../../agent/containers/device-edits.ts';
import type { SliceState } from '../../../agent/containers/slices.ts';
import type { CdiSpec } from '../../../agent/kubelet/cdi/spec.ts';
import { MIB } from '../../../common/quantity.ts';
import { demand, STATE_OPTION, stateFolder } from '../../lib/agent-client.ts';
import { type Command, choice, UsageError } from '../../lib/command.ts';
import { ENGINES, engineFlags } from '../../lib/engine-flags.ts';
import { OUTPUT_OPTIONS, print } from '../../lib/output.ts';
import { columns } from '../../output/columns.ts';

export const slices: Command = {
  name: 'slices',
  summary: 'Shows the slices of this machine, which containers get with --device cotenant.io/slice=NAME.',
  usage: '[-o table|json|yaml] | NAME --flags ENGINE',
  options: {
    flags: {
      value: 'ENGINE',
      choices: ENGINES,
      help: 'print the slice as flags of docker, podman, nerdctl or ctr run',
    },
    ...OUTPUT_OPTIONS,
    ...STATE_OPTION,
  },
  takesOperands: true,
  async run(parsed) {
    const engine = choice(parsed, 'flags', ENGINES);
    const [name, ...more] = parsed.operands;
    if (more.length > 0 || (name === undefined) !== (engine === undefined))
      throw new UsageError('want a slice with --flags ENGINE, or neither');
    const folder = stateFolder(parsed);
    if (engine !== undefined && name !== undefined) {
      const spec = await demand<CdiSpec>(folder, 'GET', `/v1/slices/${encodeURIComponent(name)}`);
      console.log(engineFlags(engine, spec).join(' '));
      return 0;
    }
    const list = await demand<readonly SliceState[]>(folder, 'GET', '/v1/slices');
    await print(parsed, list, () => sliceTable(list));
    return 0;
  },
};

function sliceTable(list: readonly SliceState[]): readonly string[] {
  if (list.length === 0) return ['no slices; write some into the slices file'];
  const rows = list.map(({ device, gpus, inUse, problem }) => [
    `${SLICE_KIND}=${device}`,
    gpus.map(({ gpuUuid }) => gpuUuid).join(' ') || '-',
    gpus[0] ? String(gpus[0].memoryBytes / MIB) : '-',
    gpus[0]?.coresPercent ? `${gpus[0].coresPercent}%` : '-',
    problem ?? (inUse ? 'in use' : 'free'),
  ]);
  return columns([['DEVICE', 'GPU', 'MIB EACH', 'CORES', 'STATE'], ...rows]);
}
