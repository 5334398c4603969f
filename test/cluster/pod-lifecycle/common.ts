import { join } from 'node:path';
import type { ExecutionContext } from 'ava';
import { type PodGrant, parsePodGrant } from '../../../src/api/grant-annotation.ts';
import { GRANT_ANNOTATION } from '../../../src/api/names.ts';
import { seriesOf } from '../../support/product/agent.ts';
import type { Bed } from '../bed/bed.ts';
import { eventually } from '../bed/eventually.ts';
import type { Pod } from '../support/pods.ts';
import { agentPage } from '../support/release.ts';
import type { testsOnWhole } from '../support/shared.ts';

const MAIN = join(import.meta.dirname, '../../../src/cli/main.ts');
export const TEAM = { namespace: 'team' };
export const OUT_OF_MEMORY = 2;

export type OnCluster = ReturnType<typeof testsOnWhole>;

function grantOf(t: ExecutionContext, pod: Pod): PodGrant {
  const grant = parsePodGrant(pod.metadata.annotations?.[GRANT_ANNOTATION] ?? '');
  if (!grant.ok) throw new Error(`${pod.metadata.name}: ${grant.error}`);
  t.true(grant.value.containers.length > 0);
  return grant.value;
}

export const gpusOf = (t: ExecutionContext, pod: Pod, container = 'main') =>
  grantOf(t, pod).containers.find(({ name }) => name === container)?.gpus ?? [];

/** The value of a container's series, as soon as it exists and is `good`. */
export const seriesWhen = (bed: Bed, name: string, pod: string, good: (value: number) => boolean) =>
  eventually(async () => {
    const value = seriesOf((await agentPage(bed)) ?? '', name, { ...TEAM, pod, container: 'main' });
    return value !== undefined && good(value) ? value : undefined;
  }, `${name} of ${pod}`);

/** Waits for a sample that began after now: for the second one that ends after now. */
export const sampled = async (bed: Bed): Promise<void> => {
  const endsAfter = (seconds: number) =>
    eventually(async () => {
      const name = 'cotenant_exporter_collector_last_success_timestamp_seconds';
      const at = seriesOf((await agentPage(bed)) ?? '', name, { collector: 'container' });
      return at !== undefined && at > seconds ? at : undefined;
    }, 'a newer sample');
  await endsAfter(await endsAfter(Date.now() / 1000));
};

const runCotenant = (bed: Bed, args: readonly string[]) => {
  const env = { KUBECONFIG: join(bed.folder, 'kubeconfig') };
  return bed.namespaces.run([process.execPath, MAIN, ...args, '--ask-cluster'], { env });
};

/** Output of a `cotenant` command on the cluster, run as an administrator. */
export const cotenant = (bed: Bed, ...args: readonly string[]): string => {
  const { code, out, err } = runCotenant(bed, args);
  if (code !== 0) throw new Error(`cotenant ${args.join(' ')}: ${err.trim()}`);
  return out;
};

/** Error output of a command that fails. */
export const refusedBy = (bed: Bed, ...args: readonly string[]): string => {
  const { code, out, err } = runCotenant(bed, args);
  if (code !== 1 || out !== '') throw new Error(`cotenant ${args.join(' ')} ended with ${code}: ${out}${err}`);
  return err;
};
