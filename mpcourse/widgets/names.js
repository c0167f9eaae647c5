// Gives sliders, rows of buttons and play buttons the names and states that ipywidgets leaves out.
window.mpcourseNames ??= (() => {
  const all = (what) => document.querySelectorAll(what);
  const put = (element, attributes) => {
    for (const [key, value] of Object.entries(attributes))
      if (element && element.getAttribute(key) !== value) element.setAttribute(key, value);
  };
  const label = (view) => view.querySelector('.widget-label')?.textContent.trim() ?? '';
  const name = () => {
    for (const view of all('.widget-hslider')) {
      const readout = view.querySelector('.widget-readout');
      const words = { 'aria-label': label(view) };
      put(view.querySelector('[role=slider]'), { ...words, 'aria-valuetext': readout?.textContent ?? '' });
      if (readout?.isContentEditable) put(readout, { ...words, role: 'textbox' });
    }
    for (const view of all('.widget-radio')) put(view, { role: 'radiogroup', 'aria-label': label(view) });
    for (const view of all('.widget-toggle-buttons')) put(view, { role: 'group', 'aria-label': label(view) });
    for (const button of all('.widget-toggle-button'))
      put(button, { 'aria-pressed': String(button.classList.contains('mod-active')) });
    for (const icon of all('.widget-play button > i'))
      put(icon.parentElement, { 'aria-label': icon.className.replace(/.*fa-/, '') });
    for (const view of all('.widget-html')) // read out when they change
      if (view.querySelector('svg')) say(view);
      else if (!view.querySelector('img')) put(view, { role: 'status', tabindex: '-1' });
  };
  const say = (view) => { // what is new in the words of a picture that has changed
    const texts = [...view.querySelectorAll('svg > title, svg > desc, svg > text')];
    const words = texts.flatMap((text) => text.textContent.split('; ')).filter((part) => /\p{L}{2}/u.test(part));
    const line = view.querySelector(':scope > [role=status]') ?? view.appendChild(document.createElement('div'));
    put(line, { role: 'status', style: 'position: absolute; clip-path: inset(50%)' });
    const news = words.filter((part) => !line.words?.includes(part));
    if (line.words && line.words.join() !== words.join())
      line.textContent = (news.length ? news : words).join('; ').slice(0, 200);
    line.words = words;
  };
  document.addEventListener('click', ({ target }) => { // this button goes; the focus stays at the answer
    const button = target.closest?.('.jupyter-button');
    if (button?.textContent === 'Show the answer') button.parentElement.querySelector('[role=status]')?.focus();
  });
  const watched = { subtree: true, childList: true, attributeFilter: ['class', 'aria-valuetext'] };
  new MutationObserver(name).observe(document.body, watched);
  return name() ?? true;
})();
