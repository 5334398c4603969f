// The enforcement mode of this node: from the agent's settings, or from the label of its Node. Labeling Nodes takes
// rights of a cluster administrator, so the label may be stricter or weaker. It is stored: an agent that restarts must
// not stop containers on a node whose label says `off` before it has read the label.
import { join } from 'node:path';
import { ENFORCEMENT_ANNOTATION } from '../../api/names.ts';
import { MODES, type Mode } from '../../api/request.ts';
import { field } from '../../common/json.ts';
import { openStateFile, type StateFormat } from '../../common/state-file.ts';
import { parseMode } from '../../policy/mode.ts';

export type NodeMode = {
  mode(): Mode;
  /** Called with the Node's present labels. */
  label(labels: Readonly<Record<string, string>>): void;
};

type Labeled = { readonly mode: Mode | undefined };

export const NODE_MODE_FORMAT: StateFormat<Labeled> = {
  version: 1,
  read(value) {
    const given = field(value, 'mode');
    const mode = parseMode(given);
    return given !== undefined && mode === undefined ? { wrong: 'field "mode": unknown mode' } : { mode };
  },
};

/** `hears`: the agent watches its Node; without the watch a stored label would be outdated. */
export function openNodeMode(
  {
    stateFolder,
    configured,
    hears,
  }: { readonly stateFolder: string; readonly configured: Mode; readonly hears: boolean },
  onProblem: (text: string) => void,
  onChange: (text: string) => void,
): NodeMode {
  const lost = `the mode of this node is ${configured} until its labels are read`;
  const file = hears
    ? openStateFile(join(stateFolder, 'enforcement.json'), NODE_MODE_FORMAT, { lost, onProblem })
    : undefined;
  let labeled = file?.found?.mode;
  let reported: string | undefined;
  return {
    mode: () => labeled ?? configured,
    label(labels) {
      const text = labels[ENFORCEMENT_ANNOTATION];
      const mode = parseMode(text);
      // Nodes change often, mostly in other fields.
      if (text !== undefined && mode === undefined && text !== reported)
        onProblem(
          `label ${ENFORCEMENT_ANNOTATION} of this node is "${text}", not one of ${MODES.join(', ')}, and is ignored`,
        );
      reported = text;
      if (mode === labeled) return;
      labeled = mode;
      onChange(
        mode === undefined
          ? `the mode of this node is ${configured} again, by the agent's settings`
          : `the mode of this node is ${mode}, by its label`,
      );
      try {
        file?.write({ mode });
      } catch (error) {
        onProblem(`cannot store the mode of this node for the next agent: ${(error as Error).message}`);
      }
    },
  };
}
