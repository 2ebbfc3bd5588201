declare const htmx: {
  process(element: Element): void;
  trigger(element: Element | string, event: string): void;
  ajax(verb: string, path: string, options: Record<string, unknown>): Promise<void>;
};

declare const Plotly: {
  react(element: HTMLElement, data: object[], layout: object, config?: object): Promise<void>;
  purge(element: HTMLElement): void;
  Plots: { resize(element: HTMLElement): Promise<void> };
};
