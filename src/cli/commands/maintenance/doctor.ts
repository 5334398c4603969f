// `cotenant doctor`: looks at this machine, or at a cluster, and says of each thing whether it is well, and what to do.
import { spawnSync } from 'node:child_process';
import { statSync } from 'node:fs';
import { join } from 'node:path';
import { agentFindings } from '../../doctor/agent.ts';
import { clusterFindings } from '../../doctor/cluster.ts';
import { type Finding, findingLines } from '../../doctor/finding.ts';
import {
  certificateFindings,
  cgroupFindings,
  clockFindings,
  driverFindings,
  type Machine,
} from '../../doctor/machine.ts';
import { runtimeFindings } from '../../doctor/runtimes.ts';
import { stateFolder } from '../../lib/agent-client.ts';
import { type Command, type Parsed, text, texts, UsageError } from '../../lib/command.ts';
import { formOf, OUTPUT_OPTIONS, print } from '../../lib/output.ts';
import { chosenCluster, systemOf, WHERE_OPTIONS } from '../../options/target.ts';

const VERSION_TIMEOUT_MS = 5000;

export const doctor: Command = {
  name: 'doctor',
  summary: 'Looks at this machine or a cluster: what is well, what is not, and what to do about it.',
  usage: '[-o table|json|yaml] [--root FOLDER] [--cert FILE ...]',
  options: {
    root: { value: 'FOLDER', help: "where the machine's files are, such as /host in kubectl debug (default /)" },
    cert: {
      multiple: true,
      value: 'FILE',
      help: 'a certificate in PEM to look at as well; may be given several times',
    },
    ...OUTPUT_OPTIONS,
    ...WHERE_OPTIONS,
  },
  notes:
    'It looks at this machine, and with an option of a cluster, or as a plugin of kubectl, at that cluster. It only ever reads. Its exit code is 1 where a line says fail.',
  async run(parsed) {
    formOf(parsed);
    const cluster = await chosenCluster(parsed);
    const nowMs = Date.now();
    const findings = cluster
      ? await clusterFindings(cluster, { system: systemOf(parsed), nowMs })
      : await machineFindings(parsed, nowMs);
    await print(parsed, findings, () => findingLines(findings));
    return findings.some(({ status }) => status === 'fail') ? 1 : 0;
  },
};

async function machineFindings(parsed: Parsed, nowMs: number): Promise<readonly Finding[]> {
  const root = text(parsed, 'root') ?? '/';
  if (!statSync(root, { throwIfNoEntry: false })?.isDirectory()) throw new UsageError(`--root ${root}: is no folder`);
  const machine: Machine = { root, nowMs, versionOf: root === '/' ? versionHere : () => undefined };
  return [
    ...driverFindings(machine),
    ...runtimeFindings(machine),
    ...cgroupFindings(machine),
    ...clockFindings(machine),
    ...certificateFindings(machine, texts(parsed, 'cert')),
    ...(await agentFindings(join(root, stateFolder(parsed)), nowMs)),
  ];
}

function versionHere(program: string): string | undefined {
  const { stdout } = spawnSync(join('/', program), ['--version'], { encoding: 'utf8', timeout: VERSION_TIMEOUT_MS });
  return stdout?.split('\n').find((line) => /\d+\.\d+/.test(line));
}
