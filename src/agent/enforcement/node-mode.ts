// The enforcement mode of this node: from the agent's settings, or from the label of its Node. Labeling Nodes takes
// rights of a cluster administrator, so the label may be stricter or weaker. It is stored: an agent that restarts must
// not stop containers on a node whose label says `off` before it has read the label.
import { join } from 'node:path';
import * as v from 'valibot';
import { ENFORCEMENT_ANNOTATION } from '../../api/names.ts';
import { MODES, type Mode } from '../../api/request.ts';
import type { Logger } from '../../common/logger.ts';
import { oneOf } from '../../common/schema.ts';
import { openStateFile, type StateFormat } from '../../common/state-file.ts';
import { parseMode } from '../../policy/mode.ts';

type NodeMode = {
  mode(): Mode;
  /** Called with the Node's present labels. */
  label(labels: Readonly<Record<string, string>>): void;
};

const labeled = v.object({ mode: v.exactOptional(oneOf(MODES)) });

const NODE_MODE_FORMAT: StateFormat<v.InferOutput<typeof labeled>> = { version: 1, schema: labeled };

/** `hears`: the agent watches its Node; without the watch a stored label would be outdated. */
export function openNodeMode(
  {
    stateFolder,
    configured,
    hears,
  }: { readonly stateFolder: string; readonly configured: Mode; readonly hears: boolean },
  log: Pick<Logger, 'info' | 'warn'>,
): NodeMode {
  const lost = `the mode of this node is ${configured} until its labels are read`;
  const file = hears
    ? openStateFile(join(stateFolder, 'enforcement.json'), NODE_MODE_FORMAT, { lost, log })
    : undefined;
  let labeled = file?.found?.mode;
  return {
    mode: () => labeled ?? configured,
    label(labels) {
      const text = labels[ENFORCEMENT_ANNOTATION];
      const mode = parseMode(text);
      if (text !== undefined && mode === undefined)
        log.warn(
          `label ${ENFORCEMENT_ANNOTATION} of this node is "${text}", not one of ${MODES.join(', ')}, and is ignored`,
        );
      if (mode === labeled) return;
      labeled = mode;
      log.info(
        mode === undefined
          ? `the mode of this node is ${configured} again, by the agent's settings`
          : `the mode of this node is ${mode}, by its label`,
      );
      try {
        file?.write(mode === undefined ? {} : { mode });
      } catch (error) {
        log.warn(`cannot store the mode of this node for the next agent: ${(error as Error).message}`);
      }
    },
  };
}
